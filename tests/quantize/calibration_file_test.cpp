// The file of an interrupted calibration: it comes back as it was, and anything else that stands
// under its name is refused by name.
#include "halftone/quantize/calibration_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "halftone/io/resume_file.h"
#include "halftone/io/safetensors_file.h"
#include "halftone/io/safetensors_writer.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensors.h"

namespace halftone {
namespace {

using test::error_of;
using testing::HasSubstr;

constexpr int kSteps = 2;
constexpr int64_t kWidth = 3;

class CalibrationFile : public testing::Test {
 protected:
  using Tensors = std::vector<std::pair<std::string, Tensor>>;

  CalibrationFile() {
    layout_.fingerprint = "me";
    layout_.prompts = 3;
    layout_.steps = kSteps;
    layout_.latents = {1, 2, 2, 2};
    layout_.points = {{0, 1}, {1, 1}, {2, 1}};
    layout_.inputs = {{"a", kWidth}, {"b", kWidth}};
    layout_.moments = {{"a", kWidth}};
    for (const auto& [weight, width] : layout_.inputs) {
      calibration_.inputs[weight].amax = {1.5f, 2.5f};
      calibration_.inputs[weight].histogram[40] = 7;
    }
    calibration_.moments["a"].restore(kWidth, {4, 1, 0, 1, 2, -1, 0, -1, 9});
    for (int prompt = 0; prompt < 2; ++prompt) {
      calibration_.points.push_back({prompt, 1,
                                     test::f32_tensor(layout_.latents, test::gaussians(prompt, 8)),
                                     test::f32_tensor(layout_.latents, test::gaussians(9, 8))});
    }
    write_calibration(path_, "me", 2, calibration_);
    const SafetensorsFile file(path_);
    metadata_ = file.metadata();
    for (const TensorEntry& entry : file.tensors()) {
      Tensor copy = Tensor::empty(entry.dtype, entry.shape);
      std::ranges::copy(file.bytes(entry), copy.mutable_bytes().begin());
      tensors_.emplace_back(entry.name, std::move(copy));
    }
  }

  CalibrationProgress read() const { return read_calibration(path_, layout_); }
  Tensor& at(Tensors& tensors, const std::string& name) const {
    for (auto& [other, tensor] : tensors) {
      if (other == name) return tensor;
    }
    throw std::out_of_range(name);
  }
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
  std::string refused_moments(const std::vector<float>& sums) {
    return refused([&](Tensors& tensors, Metadata&) {
      std::ranges::copy(sums, at(tensors, "moments.a").mutable_as<float>().begin());
    });
  }
  void expect_as_written(const CalibrationProgress& back) const {
    EXPECT_EQ(back.done, 2);
    ASSERT_EQ(back.inputs.size(), 2u);
    EXPECT_EQ(back.inputs.at("b").amax, calibration_.inputs.at("b").amax);
    EXPECT_EQ(back.inputs.at("b").histogram, calibration_.inputs.at("b").histogram);
    EXPECT_EQ(back.moments.at("a").sums(), calibration_.moments.at("a").sums());
    ASSERT_EQ(back.points.size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(back.points[i].prompt, static_cast<int>(i));
      EXPECT_EQ(test::bytes_of(back.points[i].latents),
                test::bytes_of(calibration_.points[i].latents));
    }
  }

  test::TempDir dir_;
  std::filesystem::path path_ = dir_ / "partial.safetensors";
  CalibrationLayout layout_;
  Calibration calibration_;
  Tensors tensors_;
  Metadata metadata_;
};

TEST_F(CalibrationFile, ComesBackAsItWas) { expect_as_written(read()); }

TEST_F(CalibrationFile, DataNeedNotBeAligned) {
  std::string bytes = test::read_file(path_);
  for (int i = 0; i < 7; ++i) {  // a header that is longer by one, each time
    ++bytes[0];
    ASSERT_NE(bytes[0], 0);
    const auto length =
        static_cast<unsigned char>(bytes[0]) + 256 * static_cast<unsigned char>(bytes[1]);
    bytes.insert(static_cast<size_t>(8 + length - 1), " ");
    std::ofstream(path_, std::ios::binary) << bytes;
    expect_as_written(read());
  }
}

TEST_F(CalibrationFile, SumsThatBelongToInputsBeyondNumbersMayBeAnything) {
  EXPECT_EQ(refused([&](Tensors& tensors, Metadata&) {
              at(tensors, "amax.a").mutable_as<float>()[0] = INFINITY;
              at(tensors, "moments.a").mutable_as<float>()[0] = NAN;
            }),
            "(no error)");
  EXPECT_FALSE(read().inputs.at("a").finite());
}

TEST_F(CalibrationFile, WhatDoesNotFitIsNamed) {
  const auto meta = [&](const char* key, const char* value) {
    return refused([&](Tensors&, Metadata& m) { m[key] = value; });
  };
  EXPECT_THAT(meta("halftone.calibration", "you"), HasSubstr("other options or another model"));
  for (const char* done : {"-3", "0", "4", "", " 1", "1x", "1.5", "99999999999999999999", "x"}) {
    EXPECT_THAT(meta("halftone.prompts", done), HasSubstr("halftone.prompts is '")) << done;
  }
  EXPECT_THAT(refused([](Tensors&, Metadata& m) { m.erase("halftone.prompts"); }),
              HasSubstr("halftone.prompts is ''"));
  EXPECT_THAT(refused([](Tensors&, Metadata& m) { m.clear(); }), HasSubstr("other options"));
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const std::string name = tensors_[i].first;
    EXPECT_THAT(refused([&](Tensors& t, Metadata&) { t.erase(t.begin() + i); }), HasSubstr(name));
    EXPECT_THAT(
        refused([&](Tensors& t, Metadata&) { t[i].second = Tensor::zeros(DType::kF32, {}); }),
        HasSubstr("'" + name + "' is not "));
    EXPECT_THAT(refused([&](Tensors& t, Metadata&) {
                  t[i].second = Tensor::zeros(DType::kF64, t[i].second.shape());
                }),
                HasSubstr("'" + name + "' is not "));
  }
  EXPECT_THAT(refused([](Tensors& t, Metadata&) {
                t.emplace_back("moments.b", Tensor::zeros(DType::kF32, {kWidth, kWidth}));
              }),
              HasSubstr("tensors of something else"));
  EXPECT_THAT(refused([&](Tensors& t, Metadata&) { at(t, "amax.b").mutable_as<float>()[1] = -1; }),
              HasSubstr("'amax.b' holds a negative"));
  for (const int64_t count : {int64_t{-1}, INT64_MIN, INT64_MAX}) {
    EXPECT_THAT(refused([&](Tensors& t, Metadata&) {
                  at(t, "histogram.a").mutable_as<int64_t>()[3] = count;
                }),
                HasSubstr("'histogram.a' holds"));
  }
}

TEST_F(CalibrationFile, MomentsThatNoInputsHaveAreNamed) {
  const std::vector<float> good = {4, 1, 0, 1, 2, -1, 0, -1, 9};
  EXPECT_EQ(refused_moments(good), "(no error)");
  const std::pair<size_t, float> bad[] = {{0, NAN},
                                          {1, NAN},
                                          {8, INFINITY},
                                          {3, INFINITY},
                                          {4, -2.0f},
                                          {1, 2.0f} /* not symmetric */,
                                          {0, 0.0f} /* less than its row */,
                                          {5, -1e30f}};
  for (const auto& [at, value] : bad) {
    std::vector<float> sums = good;
    sums[at] = value;
    EXPECT_THAT(refused_moments(sums), HasSubstr("'moments.a' holds no sums of squares"))
        << at << " " << value;
  }
  EXPECT_EQ(refused_moments(std::vector<float>(9, 0.0f)),
            "(no error)");  // inputs that were always zero
}

TEST_F(CalibrationFile, LossesComeBackAndOthersAreNamed) {
  const std::vector<double> losses = {0, 1e-9, 0.25, kNoNumber};
  write_losses(path_, "me", losses);
  EXPECT_EQ(read_losses(path_, {"me", 4}), losses);
  EXPECT_EQ(read_losses(path_, {"me", 9}), losses);  // more may follow
  const auto refused_losses = [&](const LossLayout& layout = {"me", 4}) {
    return error_of([&] { read_losses(path_, layout); });
  };
  EXPECT_THAT(refused_losses({"you", 4}), HasSubstr("other options or another model"));
  EXPECT_THAT(refused_losses({"me", 3}), HasSubstr("'losses' is not F64 of 1 to 3"));
  for (const double loss : {-1e-9, 2.5, double{NAN}, double{INFINITY}}) {
    write_losses(path_, "me", {0.5, loss});
    EXPECT_THAT(refused_losses(), HasSubstr("is no loss")) << loss;
  }
  const Metadata mine = {{"halftone.search", "me"}};
  write_resume_file(path_, {{"losses", Tensor::zeros(DType::kF32, {2})}}, mine);
  EXPECT_THAT(refused_losses(), HasSubstr("'losses' is not F64"));
  write_resume_file(path_, {{"losses", Tensor::zeros(DType::kF64, {1, 2})}}, mine);
  EXPECT_THAT(refused_losses(), HasSubstr("'losses' is not F64"));
  write_resume_file(path_, {{"loss", Tensor::zeros(DType::kF64, {2})}}, mine);
  EXPECT_THAT(refused_losses(), HasSubstr("losses"));
  write_resume_file(
      path_,
      {{"losses", Tensor::zeros(DType::kF64, {2})}, {"more", Tensor::zeros(DType::kF64, {2})}},
      mine);
  EXPECT_THAT(refused_losses(), HasSubstr("tensors of something else"));
}

TEST_F(CalibrationFile, OtherFilesAreErrors) {
  for (const std::string& bytes : {std::string(), std::string("{}"), std::string(100, '\xFF'),
                                   test::read_file(path_).substr(0, 300)}) {
    std::ofstream(path_, std::ios::binary) << bytes;
    EXPECT_THAT(error_of([&] { read(); }), HasSubstr("partial.safetensors"));
  }
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_THAT(error_of([&] { read(); }), HasSubstr("is a folder"));
}

}  // namespace
}  // namespace halftone
