// Quantize and dequantize speed on the CPU: input GB/s, beside a memcpy of the same bytes that is
// timed in the same loop, so that a noisy machine slows both.
//   quantize_bench --benchmark_format=json   for machines
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstring>
#include <vector>

#include "halftone/base/random.h"
#include "halftone/base/threads.h"
#include "halftone/kernels/quantize.h"

namespace halftone {
namespace {

constexpr int64_t kRows = 3840, kCols = 10240;  // the largest linear of a Z-Image block

Tensor random_weights() {
  Tensor x = Tensor::empty(DType::kBF16, {kRows, kCols});
  auto values = x.mutable_as<bf16>();
  for (size_t i = 0; i < values.size(); i += 4) {
    const PhiloxBlock block = philox_block({1, 0}, i);
    for (size_t j = 0; j < 4; ++j) {  // the sum of four uniforms is bell-shaped enough
      float sum = -2.0f;
      for (int byte = 0; byte < 4; ++byte)
        sum += static_cast<float>(block.word[j] >> 8 * byte & 255) / 255.0f;
      values[i + j] = to_bf16(sum);
    }
  }
  return x;
}

double seconds_of(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(times.size()) / 2,
                   times.end());
  return times[times.size() / 2];
}

// Times `work` against copying `bytes`, one after the other, on as many threads.
void measure(benchmark::State& state, int64_t bytes, int threads, const auto& work) {
  const auto size = static_cast<size_t>(bytes);
  std::vector<std::byte> from(size, std::byte{1}), to(size, std::byte{2});
  const auto copy = [&] {
    parallel_for(threads, bytes, 1 << 20, [&](int64_t begin, int64_t end) {
      std::memcpy(to.data() + begin, from.data() + begin, static_cast<size_t>(end - begin));
    });
    benchmark::DoNotOptimize(to.data());
  };
  std::vector<double> copies, works;
  work();
  copy();
  for (auto _ : state) {
    copies.push_back(seconds_of(copy));
    works.push_back(seconds_of(work));
    state.SetIterationTime(works.back());
  }
  const double gigabytes = static_cast<double>(bytes) * 1e-9;
  state.counters["GB/s"] = gigabytes / median(works);
  state.counters["memcpy_GB/s"] = gigabytes / median(copies);
  state.counters["of_memcpy"] = median(copies) / median(works);
}

QuantizeArgs quantize_args(const Tensor& x, QuantizedTensor& q) {
  QuantizeArgs args;
  args.x = {x.bytes().data(), x.dtype(), kRows, kCols, kCols};
  args.format = q.format;
  args.transpose = q.axis == 0;
  args.codes = reinterpret_cast<uint8_t*>(q.codes.mutable_bytes().data());
  args.scales = q.scales.mutable_bytes().data();
  if (q.format.global_scale) args.global_scale = q.global_scale.mutable_as<float>().data();
  return args;
}

void register_format(const std::string& name, const Format& format, const Tensor& x, int threads) {
  const std::string suffix = "/threads:" + std::to_string(threads);
  const auto add = [](const std::string& full, const auto& run) {
    benchmark::RegisterBenchmark(full.c_str(), run)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond)
        ->MinTime(0.5);
  };
  add("quantize/bf16->" + name + suffix, [=](benchmark::State& state) {
    QuantizedTensor q = QuantizedTensor::empty(format, x.shape());
    const QuantizeArgs args = quantize_args(x, q);
    measure(state, x.byte_size(), threads, [&] { cpu_kernels().quantize.launch(args, {threads}); });
  });
  add("dequantize/" + name + "->bf16" + suffix, [=](benchmark::State& state) {
    const QuantizedTensor q = quantize(cpu_kernels(), x, format, {}, {hardware_threads()});
    Tensor y = Tensor::zeros(DType::kBF16, x.shape());
    const DequantizeArgs args =
        dequantize_args(q, 0, {y.mutable_bytes().data(), DType::kBF16, kRows, kCols, kCols});
    measure(state, y.byte_size(), threads,
            [&] { cpu_kernels().dequantize.launch(args, {threads}); });
  });
}

void register_all() {
  const Tensor x = random_weights();
  Format tiles = formats::nvfp4, better = formats::nvfp4;
  tiles.tile_rows = 16;
  better.four_over_six = true;
  std::vector<int> threads = {1};
  if (hardware_threads() > 1) threads.push_back(hardware_threads());
  for (const int n : threads) {
    for (const Format& format : all_formats()) {
      if (format.quantized()) register_format(std::string(format.name), format, x, n);
    }
    register_format("nvfp4+tiles", tiles, x, n);
    register_format("nvfp4+4over6", better, x, n);
  }
}

}  // namespace
}  // namespace halftone

int main(int argc, char** argv) {
  benchmark::AddCustomContext("kernels", halftone::cpu_kernels().name);
  halftone::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
