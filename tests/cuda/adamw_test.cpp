// AdamW on the device does what it does on the CPU: moments of 32 and of 8 bits, values of 32 and
// of 16, the running mean, sizes that are no whole number of blocks, and gradients that are zero or
// tiny.
#include "halftone/kernels/adamw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/cuda/device_tensors.h"
#include "tests/support/backend.h"
#include "tests/support/run_graph.h"

namespace halftone {
namespace {

using test::DeviceTensor;
using test::floats;

class DeviceAdamW : public testing::TestWithParam<std::tuple<int64_t, bool, bool, bool>> {
 protected:
  // Of the CPU and of the device, in the same order.
  struct State {
    Tensor parameters, first, second, first_scales, second_scales, average;
  };

  State start() const {
    const auto [count, small, averaged, bf16_values] = GetParam();
    const DType moments = small ? DType::kF8E4M3 : DType::kF32;
    const Shape blocks{(count + kMomentBlock - 1) / kMomentBlock};
    const DType values = bf16_values ? DType::kBF16 : DType::kF32;
    return {test::random_tensor({count}, 1, values), Tensor::zeros(moments, {count}),
            Tensor::zeros(moments, {count}),         Tensor::zeros(DType::kF32, blocks),
            Tensor::zeros(DType::kF32, blocks),      test::random_tensor({count}, 1)};
  }
  Tensor gradients(int64_t step) const {
    const int64_t count = std::get<0>(GetParam());
    Tensor g = test::random_tensor({count}, static_cast<uint64_t>(10 + step));
    for (int64_t i = 0; i < count; ++i) {
      float& v = g.mutable_as<float>()[i];
      if (i % 7 == 0) v = 0;
      if (i % 11 == 0) v *= 1e-12f;
    }
    return g;
  }
};
INSTANTIATE_TEST_SUITE_P(, DeviceAdamW,
                         testing::Combine(testing::Values(1, 255, 256, 100003), testing::Bool(),
                                          testing::Bool(), testing::Bool()),
                         [](const auto& tested) {
                           return std::to_string(std::get<0>(tested.param)) +
                                  (std::get<1>(tested.param) ? "small" : "large") +
                                  (std::get<2>(tested.param) ? "averaged" : "") +
                                  (std::get<3>(tested.param) ? "bf16" : "");
                         });

TEST_P(DeviceAdamW, FollowsTheCpu) {
  const auto [count, small, averaged, bf16_values] = GetParam();
  const Stream stream = test::tested_stream();
  State cpu = start();
  DeviceTensor p(cpu.parameters, stream), m(cpu.first, stream), v(cpu.second, stream),
      ms(cpu.first_scales, stream), vs(cpu.second_scales, stream), mean(cpu.average, stream);
  const auto host = [](Tensor& x) { return View{x.mutable_bytes().data(), x.dtype(), x.shape()}; };
  const auto there = [](const DeviceTensor& x, const Tensor& like) {
    return View{x.data<std::byte>(), like.dtype(), like.shape()};
  };
  for (int64_t step = 1; step <= 5; ++step) {
    Tensor g = gradients(step);
    const DeviceTensor device_g(g, stream);
    AdamWArgs args;
    args.learning_rate = 0.02f;
    args.weight_decay = 0.1f;
    args.gradient_scale = 0.5f;
    args.step = step;
    args.rounding = {5, static_cast<uint64_t>(step)};
    args.average_rate = averaged ? 0.25f : 0;
    AdamWArgs device = args;
    args.gradients = {g.address(), g.dtype(), g.shape()};
    args.parameters = host(cpu.parameters);
    args.first = host(cpu.first);
    args.second = host(cpu.second);
    device.gradients = {device_g.data<std::byte>(), g.dtype(), g.shape()};
    device.parameters = there(p, cpu.parameters);
    device.first = there(m, cpu.first);
    device.second = there(v, cpu.second);
    if (small) {
      args.first_scales = host(cpu.first_scales);
      args.second_scales = host(cpu.second_scales);
      device.first_scales = there(ms, cpu.first_scales);
      device.second_scales = there(vs, cpu.second_scales);
    }
    if (averaged) {
      args.average = host(cpu.average);
      device.average = there(mean, cpu.average);
    }
    cpu_kernels().adamw.launch(args, {2});
    test::launch_and_wait(test::tested_kernels().adamw, device, stream);
  }
  // A code of a moment may round the other way after a last bit that differs: such a value moves
  // by an eighth of a step in the worst case.
  // A value of BF16 may be rounded the other way after such a bit.
  const double tolerance = bf16_values ? 1e-3 : small ? 5e-4 : 1e-6;
  EXPECT_LT(test::relative_error(floats(p.download()), floats(cpu.parameters)), tolerance);
  EXPECT_LT(test::relative_error(floats(mean.download()), floats(cpu.average)), tolerance);
  if (!small) {
    EXPECT_LT(test::relative_error(floats(m.download()), floats(cpu.first)), 1e-6);
    EXPECT_LT(test::relative_error(floats(v.download()), floats(cpu.second)), 1e-6);
  } else {
    EXPECT_LT(test::relative_error(floats(ms.download()), floats(cpu.first_scales)), 1e-3);
    EXPECT_LT(test::relative_error(floats(vs.download()), floats(cpu.second_scales)), 1e-3);
  }
}

}  // namespace
}  // namespace halftone
