#include "halftone/kernels/adamw.h"

#include <array>

#include "halftone/kernels/cpu/fast/rows.h"

namespace halftone::fast {
namespace {

float* floats(const View& view) { return static_cast<float*>(view.data); }
uint8_t* codes(const View& view) { return static_cast<uint8_t*>(view.data); }

void follow(const AdamWFactors& factors, float* average, int64_t i, float p) {
  if (average != nullptr) average[i] += factors.average_rate * (p - average[i]);
}

void adamw(const AdamWArgs& args, Stream stream) {
  const AdamWFactors factors = adamw_factors(args);
  const auto* g = static_cast<const float*>(args.gradients.data);
  float *p = floats(args.parameters), *first = floats(args.first), *second = floats(args.second);
  float* average = floats(args.average);
  parallel_for(stream.threads, args.parameters.shape.numel(), kValuesPerThread,
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   adamw_step(factors, g[i], p[i], first[i], second[i]);
                 }
                 for (int64_t i = begin; i < end; ++i) follow(factors, average, i, p[i]);
               });
}

void adamw_bf16(const AdamWArgs& args, Stream stream) {
  const AdamWFactors factors = adamw_factors(args);
  const ParameterValues values = parameter_values(args);
  const auto* g = static_cast<const float*>(args.gradients.data);
  float *first = floats(args.first), *second = floats(args.second);
  parallel_for(stream.threads, args.parameters.shape.numel(), kValuesPerThread,
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   float p = values.get(i);
                   adamw_step(factors, g[i], p, first[i], second[i]);
                   follow(factors, floats(args.average), i, values.set(i, p));
                 }
               });
}

// One block of values that share scales.
void adamw_block(const AdamWArgs& args, const AdamWFactors& factors, int64_t block, int64_t begin,
                 int64_t count) {
  const auto* g = static_cast<const float*>(args.gradients.data) + begin;
  const ParameterValues values = parameter_values(args);
  uint8_t *first_codes = codes(args.first) + begin, *second_codes = codes(args.second) + begin;
  float &first_scale = floats(args.first_scales)[block],
        &second_scale = floats(args.second_scales)[block];
  std::array<float, kMomentBlock> first, root;
  float first_largest = 0, root_largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    first[i] = decode<E4M3>(first_codes[i]) * first_scale;
    root[i] = decode<E4M3>(second_codes[i]) * second_scale;
    float second = root[i] * root[i];
    float p = values.get(begin + i);
    adamw_step(factors, g[i], p, first[i], second);
    follow(factors, floats(args.average), begin + i, values.set(begin + i, p));
    root[i] = std::sqrt(second);
    first_largest = std::fmax(first_largest, std::fabs(first[i]));
    root_largest = std::fmax(root_largest, root[i]);
  }
  first_scale = moment_scale(first_largest);
  second_scale = moment_scale(root_largest);
  for (int64_t i = 0; i < count; ++i) {
    first_codes[i] = encode_moment(first[i], first_scale);
    second_codes[i] = encode_root(root[i], second_scale);
  }
}

void adamw_8bit(const AdamWArgs& args, Stream stream) {
  const AdamWFactors factors = adamw_factors(args);
  const int64_t count = args.parameters.shape.numel();
  const int64_t blocks = (count + kMomentBlock - 1) / kMomentBlock;
  parallel_for(stream.threads, blocks, kValuesPerThread / kMomentBlock,
               [&](int64_t first_block, int64_t last_block) {
                 for (int64_t block = first_block; block < last_block; ++block) {
                   const int64_t begin = block * kMomentBlock;
                   adamw_block(args, factors, block, begin, std::min(kMomentBlock, count - begin));
                 }
               });
}

template <DType kValues, DType kMoments>
bool has(const AdamWArgs& a) {
  return a.gradients.dtype == DType::kF32 && a.parameters.dtype == kValues &&
         a.first.dtype == kMoments && a.second.dtype == kMoments;
}

}  // namespace

void fill_adamw(Kernels& table) {
  constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16, kSmall = DType::kF8E4M3;
  table.adamw.prefer({has<kF32, kF32>, adamw});
  table.adamw.prefer({has<kBF16, kF32>, adamw_bf16});
  table.adamw.prefer({has<kF32, kSmall>, adamw_8bit});
  table.adamw.prefer({has<kBF16, kSmall>, adamw_8bit});
}

}  // namespace halftone::fast
