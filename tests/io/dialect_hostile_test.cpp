// Files that contradict themselves, lack a part or hold one that nothing explains.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halftone/io/conversion_notes.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/io/stored_weights.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensors.h"

namespace halftone {
namespace {

using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;

class HostileDialect : public testing::Test {
 protected:
  using Parts = std::vector<std::pair<std::string, Tensor>>;

  static Tensor zeros(DType dtype, const Shape& shape) { return Tensor::zeros(dtype, shape); }
  static Tensor one(float value = 1) { return test::f32_tensor({1}, {value}); }
  static Tensor text(const std::string& s) {
    Tensor t = Tensor::empty(DType::kU8, {static_cast<int64_t>(s.size())});
    std::copy(s.begin(), s.end(), reinterpret_cast<char*>(t.mutable_bytes().data()));
    return t;
  }

  StoredWeights read(const Parts& parts, const Metadata& metadata = {}) {
    write_safetensors(file_, parts, metadata);
    return read_stored_weights(Checkpoint::open(file_));
  }
  // Without the name of the file, which every message starts with.
  std::string failure(const Parts& parts, const Metadata& metadata = {}) {
    const std::string message = error_of([&] { read(parts, metadata); });
    const std::string start = file_.string() + ": ";
    EXPECT_TRUE(message.starts_with(start)) << message;
    return message.starts_with(start) ? message.substr(start.size()) : message;
  }
  const Parts nvfp4_ = {{"a.weight", zeros(DType::kU8, {16, 16})},
                        {"a.weight_scale", zeros(DType::kF8E4M3, {16, 2})},
                        {"a.weight_scale_2", one()}};
  const Parts fp8_ = {{"a.weight", zeros(DType::kF8E4M3, {16, 32})}, {"a.weight_scale", one()}};
  static Parts with(Parts parts, const std::string& name, const Tensor& tensor) {
    std::erase_if(parts, [&](const auto& part) { return part.first == name; });
    parts.emplace_back(name, tensor);
    return parts;
  }
  static Parts without(Parts parts, const std::string& name) {
    std::erase_if(parts, [&](const auto& part) { return part.first == name; });
    return parts;
  }

  test::TempDir dir_;
  std::filesystem::path file_ = dir_ / "f.safetensors";
};

// Every combination is read or is an Error, and what is read can be loaded.
TEST_F(HostileDialect, NoCombinationOfPartsBreaksTheReader) {
  const std::vector<std::vector<std::string>> names = {
      {"a.weight", "a.weight_scale", "a.weight_scale_2"},
      {"a.weight_packed", "a.weight_scale", "a.weight_global_scale"},
      {"a._weight_qdata", "a._weight_scale", "a._weight_per_tensor_scale"},
      {"a.weight", "a.scale_weight", "scaled_fp8"}};
  const Shape code_shapes[] = {{2, 3}, {3, 2}, {2, 16},   {2, 64}, {0, 2},
                               {2, 0}, {2},    {2, 2, 2}, {}};
  const Shape scale_shapes[] = {{}, {1}, {2}, {2, 1}, {2, 2}, {0}, {128, 4}, {512}, {1, 1, 1}};
  int loaded = 0, refused = 0;
  const auto attempt = [&](const std::vector<TensorSpec>& specs) {
    std::vector<TensorEntry> entries;
    int64_t offset = 0;
    for (const TensorSpec& spec : specs) {
      const auto bytes = spec.shape.checked_bytes(spec.dtype);
      if (!bytes) return;  // half a byte
      entries.push_back({spec.name, spec.dtype, spec.shape, offset, offset + *bytes});
      offset += *bytes;
    }
    test::write_file(file_, write_safetensors_header(entries, {}, "f") +
                                std::string(static_cast<size_t>(offset), '\x38'));
    const std::string message = error_of([&] {
      const Checkpoint checkpoint = Checkpoint::open(file_);
      for (const auto& [name, weight] : read_stored_weights(checkpoint).weights) {
        loaded += load_stored(checkpoint, weight).byte_size() > 0 ? 1 : 0;
      }
    });
    if (message == "(no error)") return;
    ++refused;
    EXPECT_TRUE(message.starts_with(file_.string() + ": ")) << message;
  };
  for (const auto& name : names) {
    for (const DType codes : {DType::kU8, DType::kF4, DType::kF8E4M3, DType::kI8}) {
      for (const Shape& code_shape : code_shapes) {
        for (const DType scales : {DType::kF32, DType::kF16, DType::kF8E4M3, DType::kF8E8M0}) {
          for (const Shape& scale_shape : scale_shapes) {
            attempt({{name[0], codes, code_shape},
                     {name[1], scales, scale_shape},
                     {name[2], DType::kF32, {1}}});
          }
        }
      }
    }
  }
  EXPECT_GT(loaded, 100);
  EXPECT_GT(refused, 1000);
}

TEST_F(HostileDialect, MissingPartsAreNamed) {
  EXPECT_EQ(failure(without(nvfp4_, "a.weight_scale_2")), "tensor 'a.weight_scale_2': is missing");
  EXPECT_EQ(failure({{"a.weight_packed", zeros(DType::kU8, {16, 16})}}),
            "tensor 'a.weight_scale': is missing");
  EXPECT_EQ(failure({{"a.weight_packed", zeros(DType::kU8, {16, 16})},
                     {"a.weight_scale", zeros(DType::kF8E4M3, {16, 2})}}),
            "tensor 'a.weight_global_scale': is missing");
  EXPECT_EQ(failure({{"a._weight_qdata", zeros(DType::kF8E4M3, {16, 32})}}),
            "tensor 'a._weight_scale': is missing");
  EXPECT_EQ(failure({{"a.comfy_quant", text(R"({"format":"nvfp4"})")}}),
            "tensor 'a.weight': is marked as nvfp4, but not in the file");
  EXPECT_EQ(failure({{"b.weight", zeros(DType::kBF16, {2, 2})}},
                    {{"_quantization_metadata", R"({"layers":{"a":{"format":"mxfp8"}}})"}}),
            "tensor 'a.weight': is marked as mxfp8, but not in the file");
  // One layer without a scale among others that have one is no plain FP8.
  EXPECT_EQ(failure(with(fp8_, "b.weight", zeros(DType::kF8E4M3, {2, 2}))),
            "tensor 'b.weight': is F8_E4M3, but its scale is missing");
}

TEST_F(HostileDialect, MisshapedPartsAreNamed) {
  EXPECT_EQ(failure(with(nvfp4_, "a.weight_scale", zeros(DType::kF8E4M3, {16, 3}))),
            "tensor 'a.weight_scale': is F8_E4M3 [16, 3], but nvfp4 [16, 32] takes linear F8_E4M3 "
            "[16, 2]");
  EXPECT_EQ(failure(with(nvfp4_, "a.weight_scale", zeros(DType::kF8E4M3, {128, 4}))),
            "tensor 'a.weight_scale': is F8_E4M3 [128, 4], but nvfp4 [16, 32] takes linear F8_E4M3 "
            "[16, 2] (it would fit as swizzled scales)");
  EXPECT_EQ(failure(with(nvfp4_, "a.weight_scale_2", zeros(DType::kF32, {2}))),
            "tensor 'a.weight_scale_2': is F32 [2] instead of one F32");
  EXPECT_EQ(failure(with(fp8_, "a.weight_scale", zeros(DType::kF32, {4, 2}))),
            "tensor 'a.weight_scale': is F32 [4, 2], but F8_E4M3 [16, 32] takes one F32, F32 [16] "
            "or exponents per 32 columns");
  EXPECT_EQ(failure(with(fp8_, "a.weight_scale", zeros(DType::kU8, {16, 2}))),
            "tensor 'a.weight_scale': is U8 [16, 2], but mxfp8 [16, 32] takes linear F8_E8M0 "
            "[16, 1]");
  EXPECT_EQ(failure(with(fp8_, "a.weight", zeros(DType::kF8E4M3, {512}))),
            "tensor 'a.weight': is F8_E4M3 [512] instead of a matrix of codes");
  EXPECT_EQ(failure(with(nvfp4_, "a.weight_scale", zeros(DType::kU8, {16, 1}))),
            "tensor 'a.weight': MXFP4 is not read; FP8, MXFP8 and NVFP4 are");
  EXPECT_EQ(failure(with(fp8_, "a.input_scale", one(0))),
            "tensor 'a.input_scale': is not a positive number");
  EXPECT_EQ(failure(with(fp8_, "a.input_scale", zeros(DType::kF32, {32}))),
            "tensor 'a.input_scale': is F32 [32] instead of one F32");
}

TEST_F(HostileDialect, MarkersThatContradictTheTensorsAreNamed) {
  const auto marked = [&](const std::string& json) {
    return failure(with(fp8_, "a.comfy_quant", text(json)));
  };
  EXPECT_EQ(marked(R"({"format":"nvfp4"})"),
            "tensor 'a.weight': is marked as nvfp4, but its tensors are fp8-tensor");
  EXPECT_EQ(marked(R"({"format":"float8_e5m2"})"),
            "tensor 'a.weight': is marked as fp8-e5m2-tensor, but its tensors are fp8-tensor");
  EXPECT_EQ(marked(R"({"format":"int8"})"),
            "tensor 'a.comfy_quant': format 'int8' is not read; float8_e4m3fn, float8_e5m2, mxfp8 "
            "and nvfp4 are");
  EXPECT_EQ(marked(R"({"format":"float8_e4m3fn","rotate":1})"),
            "tensor 'a.comfy_quant': unknown field 'rotate'");
  EXPECT_THAT(marked("{"), HasSubstr("tensor 'a.comfy_quant'"));
  EXPECT_EQ(failure(with(fp8_, "a.comfy_quant", zeros(DType::kI8, {3}))),
            "tensor 'a.comfy_quant': is I8 [3] instead of the U8 bytes of a JSON text");
  EXPECT_EQ(failure(with(fp8_, "a.comfy_quant",
                         text(R"({"format":"float8_e4m3fn","full_precision_matrix_mult":true})")),
                    {{"_quantization_metadata", R"({"layers":{"a":{"format":"float8_e4m3fn"}}})"}}),
            "tensor 'a.comfy_quant': contradicts metadata _quantization_metadata");
  const Parts torchao = {{"a._weight_qdata", zeros(DType::kF8E4M3, {16, 32})},
                         {"a._weight_scale", one()}};
  const auto described = [&](const std::string& json) {
    return failure(torchao, {{"a.weight", json}});
  };
  EXPECT_EQ(described(R"({"_type":"MXTensor","_data":{},"_tensor_data_names":[]})"),
            "tensor 'a.weight': is marked as MXTensor, but its tensors are fp8-tensor");
  EXPECT_EQ(described(R"({"_type":"Int4Tensor","_data":{},"_tensor_data_names":[]})"),
            "metadata a.weight: 'Int4Tensor' is not read; Float8Tensor, MXTensor and NVFP4Tensor "
            "are");
  EXPECT_EQ(described(R"({"_type":"Float8Tensor","_data":{},"_tensor_data_names":["zero"]})"),
            "tensor 'a._weight_zero': is missing");
}

TEST_F(HostileDialect, NotesThatDoNotFitAreNamed) {
  const auto noted = [&](const std::string& json) { return failure(nvfp4_, {{kNotesKey, json}}); };
  EXPECT_EQ(noted(R"({"version":1,"weights":{"a.weight":{"global_scale":2}}})"),
            "tensor 'a.weight': metadata halftone.notes contradicts its global scale");
  EXPECT_EQ(noted(R"({"version":1,"weights":{"b.weight":{"full_precision":true}}})"),
            "tensor 'b.weight': is in metadata halftone.notes, but not a quantized weight");
  EXPECT_EQ(noted(R"({"version":1,"weights":{"a.weight":{"input_scale":1e99}}})"),
            "metadata halftone.notes: tensor 'a.weight': 'input_scale' is not a positive float");
  EXPECT_THAT(noted(R"({"version":2})"), HasSubstr("is not of version 1"));
  const ConversionNotes shape = {
      {"a.weight", {QuantizedEntry{formats::nvfp4, {15, 32}}, {}, {}, false}}};
  EXPECT_EQ(noted(notes_json(shape)),
            "tensor 'a.weight': metadata halftone.notes contradicts its shape");
  const ConversionNotes format = {
      {"a.weight", {QuantizedEntry{formats::mxfp8, {16, 32}}, {}, {}, false}}};
  EXPECT_EQ(noted(notes_json(format)),
            "tensor 'a.weight': metadata halftone.notes contradicts its format");
}

TEST_F(HostileDialect, WhatNothingExplainsIsNamedInOneError) {
  Parts parts = with(nvfp4_, "a.weight_zero_point", one());
  parts.emplace_back("a.pre_quant_scale", one());
  parts.emplace_back("a.bias", zeros(DType::kF32, {16}));
  parts.emplace_back("b.weight", zeros(DType::kBF16, {2, 2}));
  parts.emplace_back("b.input_scale", one());
  parts.emplace_back("c.scale", one());  // some module's own
  const StoredWeights stored = read(parts);
  EXPECT_THAT(stored.unexplained,
              ElementsAre("a.pre_quant_scale", "a.weight_zero_point", "b.input_scale"));
  EXPECT_EQ(error_of([&] { check_explained(stored, "f"); }),
            "f: 3 tensors belong to quantized weights, but to nothing known of modelopt: "
            "'a.pre_quant_scale', 'a.weight_zero_point', 'b.input_scale'");
  // MXFP8 has no use for a calibrated scale: it may not vanish.
  const StoredWeights mx =
      read(with(with(fp8_, "a.weight_scale", zeros(DType::kU8, {16, 1})), "a.input_scale", one()));
  EXPECT_THAT(mx.unexplained, ElementsAre("a.input_scale"));
}

TEST_F(HostileDialect, AnOlderMarkerMayBeF32AndNothingElse) {
  const Parts parts = {{"m.a.weight", zeros(DType::kF8E4M3, {2, 2})}, {"m.a.scale_weight", one()}};
  const auto stored = read(with(parts, "m.scaled_fp8", zeros(DType::kF32, {2})));
  EXPECT_TRUE(stored.weights.at("m.a.weight").full_precision);
  EXPECT_EQ(stored.consumed.at("m.scaled_fp8"), "");
  EXPECT_EQ(failure(with(parts, "m.scaled_fp8", zeros(DType::kI64, {2}))),
            "tensor 'm.scaled_fp8': is I64 instead of F8_E4M3 or F8_E5M2");
}

TEST_F(HostileDialect, ScalesMayBeScalarsListsOrColumnsAndOf16Bits) {
  EXPECT_EQ(
      read(with(fp8_, "a.weight_scale", test::f32_tensor({}, {2}))).weights.at("a.weight").format,
      formats::fp8_tensor);
  for (const Shape& shape : {Shape{16}, Shape{16, 1}}) {
    EXPECT_EQ(
        read(with(fp8_, "a.weight_scale", zeros(DType::kF32, shape))).weights.at("a.weight").format,
        formats::fp8);
  }
  const StoredWeights half =
      read(with(fp8_, "a.weight_scale", test::bf16_tensor({1}, std::vector<float>{0.5f})));
  const Checkpoint checkpoint = Checkpoint::open(file_);
  EXPECT_EQ(load_stored(checkpoint, half.weights.at("a.weight")).scales.as<float>()[0], 0.5f);
}

}  // namespace
}  // namespace halftone
