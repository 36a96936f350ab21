#include "halftone/quantize/quantize_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "halftone/io/quantization_metadata.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/kernels/quantize.h"
#include "tests/support/errors.h"
#include "tests/support/silent.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensors.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;

std::string describe(const FileQuantizeReport::Kept& kept) {
  return kept.name + ": " + kept.reason;
}

class QuantizeFile : public testing::Test {
 protected:
  QuantizeFile() {
    tensors_ = {{"blocks.0.attn.weight", test::bf16_tensor({48, 64}, test::gaussians(1, 48 * 64))},
                {"blocks.0.attn.bias", test::f32_tensor({48}, test::gaussians(2, 48))},
                {"blocks.0.norm.weight", test::f32_tensor({64}, test::gaussians(3, 64))},
                {"blocks.10.mlp.weight", test::f32_tensor({32, 96}, test::gaussians(4, 32 * 96))},
                {"table", test::f32_tensor({2, 32}, test::gaussians(5, 64))},
                {"ids.weight", Tensor::zeros(DType::kI64, {2, 32})}};
  }
  FileQuantizeReport run(const FileQuantizeOptions& options) {
    write_safetensors(in_, tensors_, {{"k", "v"}});
    return quantize_file(in_, out_, options, cpu_kernels(), {2}, test::silent);
  }
  FileQuantizeReport run(const Format& format) { return run(FileQuantizeOptions{format, {}, {}}); }
  std::string failure(const FileQuantizeOptions& options) {
    return error_of([&] { run(options); });
  }

  test::TempDir dir_;
  fs::path in_ = dir_ / "in.safetensors", out_ = dir_ / "out.safetensors";
  std::vector<std::pair<std::string, Tensor>> tensors_;
};

class QuantizeFileTo : public QuantizeFile, public testing::WithParamInterface<Format> {};
INSTANTIATE_TEST_SUITE_P(, QuantizeFileTo,
                         testing::Values(formats::fp8, formats::fp8_tensor, formats::mxfp8,
                                         formats::nvfp4),
                         [](const auto& tested) {
                           return tested.param.name == "fp8-tensor"
                                      ? "fp8_tensor"
                                      : std::string(tested.param.name);
                         });

TEST_P(QuantizeFileTo, WeightsAreWhatTheQuantizerMakesAndTheRestIsCopied) {
  const auto report = run(GetParam());
  const auto out = Checkpoint::open(out_);
  EXPECT_EQ(out.metadata().at("k"), "v");
  const auto metadata = parse_quantization_metadata(out.metadata().at(kQuantizationKey), "f");
  ASSERT_EQ(metadata.size(), 2u);
  size_t known = 0;
  for (const auto& [name, x] : tensors_) {
    const auto found = metadata.find(name);
    if (found == metadata.end()) {
      EXPECT_EQ(test::bytes_of(out.tensor(name)), test::bytes_of(x)) << name;
      EXPECT_EQ(out.tensor(name).dtype(), x.dtype());
      ++known;
      continue;
    }
    const auto expected = quantize(cpu_scalar_kernels(), x, GetParam(), {}, {});
    const auto loaded = load_quantized(out, name, found->second);
    EXPECT_EQ(test::bytes_of(loaded.codes), test::bytes_of(expected.codes)) << name;
    EXPECT_EQ(test::bytes_of(loaded.scales), test::bytes_of(expected.scales)) << name;
    known += GetParam().global_scale ? 3 : 2;
  }
  EXPECT_EQ(out.items().size(), known);  // nothing else was written
}

TEST_P(QuantizeFileTo, ReportsErrorsAndBytesThatAreTrue) {
  const auto report = run(GetParam());
  ASSERT_EQ(report.converted.size(), 2u);
  const auto& first = report.converted[0];
  EXPECT_EQ(first.name, "blocks.0.attn.weight");
  const Tensor& x = tensors_[0].second;
  const Tensor y = dequantize(
      cpu_scalar_kernels(), quantize(cpu_scalar_kernels(), x, GetParam(), {}, {}), DType::kF32, {});
  double error = 0, norm = 0;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double value = to_float(x.as<bf16>()[i]);
    error += std::pow(value - y.as<float>()[i], 2);
    norm += value * value;
  }
  EXPECT_NEAR(first.relative_error, std::sqrt(error / norm), 1e-6);
  EXPECT_GT(first.relative_error, 0.01);
  EXPECT_EQ(first.bytes_before, 48 * 64 * 2);
  EXPECT_EQ(report.file_bytes_after, static_cast<int64_t>(fs::file_size(out_)));
  EXPECT_EQ(report.file_bytes_before, static_cast<int64_t>(fs::file_size(in_)));
  EXPECT_EQ(report.copied, 4);
  EXPECT_GE(report.worst()->relative_error, report.mean_error());
}

TEST_F(QuantizeFile, LayoutOfEachFormatIsAsDocumented) {
  const auto entry = [&](const Format& format, const std::string& name) {
    run(format);
    const auto out = Checkpoint::open(out_);
    const TensorEntry& e = *out.find(name)->entry;
    return std::string(name_of(e.dtype)) + e.shape.str();
  };
  EXPECT_EQ(entry(formats::fp8, "blocks.0.attn.weight"), "F8_E4M3[48, 64]");
  EXPECT_EQ(entry(formats::fp8, "blocks.0.attn.weight_scale"), "F32[48, 1]");
  EXPECT_EQ(entry(formats::fp8_tensor, "blocks.0.attn.weight_scale"), "F32[1]");
  EXPECT_EQ(entry(formats::mxfp8, "blocks.0.attn.weight_scale"), "F8_E8M0[48, 2]");
  EXPECT_EQ(entry(formats::nvfp4, "blocks.0.attn.weight"), "U8[48, 32]");
  EXPECT_EQ(entry(formats::nvfp4, "blocks.0.attn.weight_scale"), "F8_E4M3[48, 4]");
  EXPECT_EQ(entry(formats::nvfp4, "blocks.0.attn.weight_scale_2"), "F32[1]");
}

TEST_F(QuantizeFile, PatternsChooseAndWhatIsKeptIsListedWithItsReason) {
  auto report = run({formats::fp8, {}, {"*mlp*"}});
  EXPECT_EQ(report.converted.size(), 1u);
  EXPECT_THAT(describe(report.kept[0]), "blocks.10.mlp.weight: excluded");
  EXPECT_THAT(describe(report.kept[1]), "ids.weight: its dtype is I64, not F32, BF16 or F16");
  report = run({formats::fp8, {"blocks.1*"}, {}});
  EXPECT_EQ(report.converted[0].name, "blocks.10.mlp.weight");
  EXPECT_THAT(describe(report.kept[0]), "blocks.0.attn.weight: not included");
  report = run({formats::fp8, {"blocks.*", "nothing*"}, {"typo"}});
  EXPECT_THAT(report.unmatched_patterns, ElementsAre("nothing*", "typo"));
}

TEST_F(QuantizeFile, RowsThatAreNoMultipleOfTheBlockAreKept) {
  tensors_.emplace_back("odd.weight", test::f32_tensor({2, 40}, test::gaussians(6, 80)));
  EXPECT_THAT(describe(run(formats::mxfp8).kept.back()),
              "odd.weight: its 40 columns are no multiple of 32");
  EXPECT_EQ(run(formats::fp8).converted.size(), 3u);  // any width will do there
}

TEST_F(QuantizeFile, WeightsThatAreNotFiniteStayAsTheyAre) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    tensors_[3].second.mutable_as<float>()[7] = bad;
    const auto report = run(formats::fp8);
    EXPECT_EQ(report.converted.size(), 1u);
    EXPECT_THAT(describe(report.kept[0]),
                "blocks.10.mlp.weight: holds NaN, Inf or what would become Inf");
    EXPECT_EQ(test::bytes_of(Checkpoint::open(out_).tensor("blocks.10.mlp.weight")),
              test::bytes_of(tensors_[3].second));
  }
}

TEST_F(QuantizeFile, ErrorsOfTinyAndHugeWeightsAreTrue) {
  const auto normal = run(formats::fp8).converted[1].relative_error;
  const auto original = test::gaussians(4, 32 * 96);
  for (const int exponent : {-80, 70}) {
    Tensor scaled = Tensor::empty(DType::kF32, tensors_[3].second.shape());
    for (int64_t i = 0; i < scaled.numel(); ++i) {
      scaled.mutable_as<float>()[i] = std::ldexp(original[i], exponent);
    }
    tensors_[3].second = scaled;
    EXPECT_NEAR(run(formats::fp8).converted[1].relative_error, normal, 1e-6) << exponent;
  }
}

TEST_P(QuantizeFileTo, DegenerateWeightsHaveErrorsThatAreNumbers) {
  const float values[] = {0.0f, -0.0f, 0.3f, 1e-45f, 1e-40f, 1e-38f, 3.4e38f};
  for (const int64_t rows : {1, 3}) {
    for (const float value : values) {
      tensors_[3].second =
          test::f32_tensor({rows, 96}, std::vector<float>(static_cast<size_t>(rows * 96), value));
      const auto report = run(GetParam());
      if (report.converted.size() == 1) {  // beyond what a power-of-two scale can hold
        EXPECT_EQ(GetParam().scale, ScaleType::kE8M0);
        EXPECT_EQ(value, 3.4e38f);
        continue;
      }
      const auto& converted = report.converted[1];
      EXPECT_TRUE(std::isfinite(converted.relative_error)) << value;
      EXPECT_LE(converted.relative_error, 1) << value;  // what is too small to hold becomes zero
      EXPECT_TRUE(value != 0 || converted.relative_error == 0) << converted.relative_error;
    }
  }
}

TEST_F(QuantizeFile, LargeTensorsThatAreCopiedReportProgress) {
  tensors_.emplace_back("big", Tensor::zeros(DType::kU8, {40 << 20}));
  write_safetensors(in_, tensors_);
  int within = 0;
  quantize_file(in_, out_, {formats::fp8, {}, {}}, cpu_kernels(), {1},
                [&](const Progress& p) { within += p.item == "big"; });
  EXPECT_GE(within, 3);
}

TEST_F(QuantizeFile, WhatCannotWorkIsRefusedAndLeavesNothing) {
  EXPECT_THAT(failure({formats::fp8, {"x*"}, {}}),
              HasSubstr("nothing to convert: all 3 weights are kept"));
  tensors_.emplace_back("blocks.0.attn.weight_scale", test::f32_tensor({1}, {1}));
  EXPECT_THAT(failure({formats::fp8, {}, {}}), HasSubstr("blocks.0.attn.weight_scale"));
  tensors_.resize(2);
  tensors_.erase(tensors_.begin());
  EXPECT_THAT(failure({formats::fp8, {}, {}}), HasSubstr("has no 2-D tensor called *.weight"));
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(QuantizeFile, QuantizingTwiceOrOntoItselfIsRefused) {
  run(formats::fp8);
  const auto again = [&](const fs::path& from, const fs::path& to) {
    return error_of(
        [&] { quantize_file(from, to, {formats::fp8, {}, {}}, cpu_kernels(), {1}, test::silent); });
  };
  EXPECT_THAT(again(out_, dir_ / "x"), HasSubstr("is quantized already (halftone"));
  const std::string before = test::read_file(in_);
  EXPECT_THAT(again(in_, in_), HasSubstr("the output is the input"));
  EXPECT_TRUE(test::read_file(in_) == before);
}

TEST_F(QuantizeFile, CancellingLeavesNothing) {
  write_safetensors(in_, tensors_);
  int calls = 0;
  const auto cancel = [&](const Progress&) {
    if (++calls == 3) throw Error(ErrorCode::kCancelled, "", "stop");
  };
  EXPECT_THAT(error_of([&] {
                quantize_file(in_, out_, {formats::fp8, {}, {}}, cpu_kernels(), {1}, cancel);
              }),
              "stop");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_.path()), {}), 1);  // the input alone
}

}  // namespace
}  // namespace halftone
