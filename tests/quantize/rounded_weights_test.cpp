// Rounded weights as a file: they come back as they were, and anything else is refused by name.
#include "halftone/quantize/rounded_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "halftone/io/resume_file.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/kernels/quantize.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensors.h"

namespace halftone {
namespace {

using test::error_of;
using testing::HasSubstr;

class RoundedFile : public testing::Test {
 protected:
  using Tensors = std::vector<std::pair<std::string, Tensor>>;

  RoundedFile() {
    layout_.fingerprint = "me";
    for (const char* name : {"a", "b"}) {
      layout_.weights[name] = {{4, 32},
                               {formats::fp8, formats::fp8_tensor, formats::mxfp8, formats::nvfp4}};
      const Tensor w = test::f32_tensor({4, 32}, test::gaussians(name[0], 128));
      for (const Format& format : layout_.weights[name].formats) {
        weights_[{name, std::string(format.name)}] = quantize(cpu_kernels(), w, format, {}, {1});
      }
    }
    write_rounded(path_, "me", weights_);
    const SafetensorsFile file(path_);
    metadata_ = file.metadata();
    for (const TensorEntry& entry : file.tensors()) {
      Tensor copy = Tensor::empty(entry.dtype, entry.shape);
      std::ranges::copy(file.bytes(entry), copy.mutable_bytes().begin());
      tensors_.emplace_back(entry.name, std::move(copy));
    }
  }
  RoundedWeights read() const { return read_rounded(path_, layout_); }
  // The file with one thing changed.
  std::string refused(const std::function<void(Tensors&, Metadata&)>& change) {
    Tensors tensors;
    for (const auto& [name, x] : tensors_) {
      Tensor copy = Tensor::empty(x.dtype(), x.shape());
      std::ranges::copy(x.bytes(), copy.mutable_bytes().begin());
      tensors.emplace_back(name, std::move(copy));
    }
    Metadata metadata = metadata_;
    change(tensors, metadata);
    write_resume_file(path_, tensors, metadata);
    return error_of([&] { read(); });
  }
  std::string refused_byte(const std::string& name, unsigned value) {
    return refused([&](Tensors& tensors, Metadata&) {
      for (auto& [other, x] : tensors) {
        if (other == name) x.mutable_bytes()[1] = std::byte(value);
      }
    });
  }

  test::TempDir dir_;
  std::filesystem::path path_ = dir_ / "rounded.safetensors";
  RoundedLayout layout_;
  RoundedWeights weights_;
  Tensors tensors_;
  Metadata metadata_;
};

TEST_F(RoundedFile, ComesBackAsItWas) {
  const RoundedWeights back = read();
  ASSERT_EQ(back.size(), 8u);
  for (const auto& [key, q] : weights_) {
    const QuantizedTensor& other = back.at(key);
    EXPECT_EQ(other.format, q.format);
    EXPECT_EQ(other.shape, q.shape);
    EXPECT_EQ(test::bytes_of(other.codes), test::bytes_of(q.codes)) << key.second;
    EXPECT_EQ(test::bytes_of(other.scales), test::bytes_of(q.scales)) << key.second;
    EXPECT_EQ(other.global_scale.defined(), q.global_scale.defined());
  }
}

TEST_F(RoundedFile, SomeOfTheWeightsAreEnough) {
  RoundedWeights one = {*weights_.begin()};
  write_rounded(path_, "me", one);
  EXPECT_EQ(read().size(), 1u);
}

TEST_F(RoundedFile, WhatDoesNotFitIsNamed) {
  EXPECT_THAT(refused([](Tensors&, Metadata& m) { m["halftone.rounded"] = "you"; }),
              HasSubstr("other options or another model"));
  EXPECT_THAT(refused([](Tensors&, Metadata& m) { m.clear(); }), HasSubstr("other options"));
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const std::string name = tensors_[i].first;
    EXPECT_NE(refused([&](Tensors& t, Metadata&) { t.erase(t.begin() + i); }), "(no error)")
        << name;
    EXPECT_THAT(
        refused([&](Tensors& t, Metadata&) { t[i].second = Tensor::zeros(DType::kF32, {7}); }),
        HasSubstr("'" + name + "' is not "));
  }
  EXPECT_THAT(refused([](Tensors& t, Metadata&) {
                t.emplace_back("codes.fp8.c", Tensor::zeros(DType::kF32, {1}));
              }),
              HasSubstr("tensors of something else"));
}

TEST_F(RoundedFile, CodesAndScalesThatAreNoNumbersAreNamed) {
  for (const unsigned code : {0x7Fu, 0xFFu}) {
    EXPECT_THAT(refused_byte("codes.fp8.a", code), HasSubstr("'a' holds a code that is no number"));
    EXPECT_THAT(refused_byte("codes.mxfp8.b", code), HasSubstr("no number"));
    EXPECT_EQ(refused_byte("codes.nvfp4.a", code), "(no error)");  // two numbers
  }
  EXPECT_EQ(refused_byte("codes.fp8.a", 0xFE), "(no error)");
  EXPECT_THAT(refused_byte("scales.mxfp8.a", 0xFF), HasSubstr("'a' has a scale that is none"));
  EXPECT_THAT(refused_byte("scales.nvfp4.a", 0x7F), HasSubstr("'a' has a scale that is none"));
  EXPECT_THAT(refused_byte("scales.nvfp4.a", 0x81), HasSubstr("'a' has a scale that is none"));
  for (const float scale : {0.0f, -1.0f, INFINITY, NAN}) {
    for (const char* name : {"scales.fp8.a", "scales.fp8-tensor.a", "global_scale.nvfp4.a"}) {
      EXPECT_THAT(refused([&](Tensors& tensors, Metadata&) {
                    for (auto& [other, x] : tensors) {
                      if (other == name) x.mutable_as<float>()[0] = scale;
                    }
                  }),
                  HasSubstr("'a' has a scale of"))
          << name;
    }
  }
}

// A number that became another one.
TEST_F(RoundedFile, EveryFlippedBitOfDataIsSeen) {
  std::string bytes;
  {
    std::ifstream in(path_, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const size_t data = 8 + header;
  for (size_t at = data; at < bytes.size(); at += std::max<size_t>(1, (bytes.size() - data) / 40)) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    std::ofstream(path_, std::ios::binary) << damaged;
    EXPECT_NE(error_of([&] { read(); }), "(no error)") << "byte " << at;
  }
  std::ofstream(path_, std::ios::binary) << bytes;
  EXPECT_EQ(error_of([&] { read(); }), "(no error)");
}

}  // namespace
}  // namespace halftone
