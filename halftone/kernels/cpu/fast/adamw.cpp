#include "halftone/kernels/adamw.h"

#include <array>

#include "halftone/kernels/cpu/fast/rows.h"

namespace halftone::fast {
namespace {

float* floats(const View& view) { return static_cast<float*>(view.data); }
uint8_t* codes(const View& view) { return static_cast<uint8_t*>(view.data); }

void follow(const AdamWFactors& factors, int64_t begin, int64_t end, const float* p,
            float* average) {
  if (average == nullptr) return;
  for (int64_t i = begin; i < end; ++i) average[i] += factors.average_rate * (p[i] - average[i]);
}

void adamw(const AdamWArgs& args, Stream stream) {
  const AdamWFactors factors = adamw_factors(args);
  const auto* g = static_cast<const float*>(args.gradients.data);
  float *p = floats(args.parameters), *first = floats(args.first), *second = floats(args.second);
  parallel_for(stream.threads, args.parameters.shape.numel(), kValuesPerThread,
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   adamw_step(factors, g[i], p[i], first[i], second[i]);
                 }
                 follow(factors, begin, end, p, floats(args.average));
               });
}

// One block of values that share scales.
void adamw_block(const AdamWArgs& args, const AdamWFactors& factors, int64_t block, int64_t begin,
                 int64_t count) {
  const auto* g = static_cast<const float*>(args.gradients.data) + begin;
  float* p = floats(args.parameters) + begin;
  uint8_t *first_codes = codes(args.first) + begin, *second_codes = codes(args.second) + begin;
  float &first_scale = floats(args.first_scales)[block],
        &second_scale = floats(args.second_scales)[block];
  std::array<float, kMomentBlock> first, root;
  float first_largest = 0, root_largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    first[i] = decode<E4M3>(first_codes[i]) * first_scale;
    root[i] = decode<E4M3>(second_codes[i]) * second_scale;
    float second = root[i] * root[i];
    adamw_step(factors, g[i], p[i], first[i], second);
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
                 follow(factors, first_block * kMomentBlock,
                        std::min(count, last_block * kMomentBlock), floats(args.parameters),
                        floats(args.average));
               });
}

bool has_f32_values(const AdamWArgs& a) {
  return a.gradients.dtype == DType::kF32 && a.parameters.dtype == DType::kF32;
}
bool is_all_f32(const AdamWArgs& a) {
  return has_f32_values(a) && a.first.dtype == DType::kF32 && a.second.dtype == DType::kF32;
}
bool has_8bit_moments(const AdamWArgs& a) {
  return has_f32_values(a) && a.first.dtype == DType::kF8E4M3 && a.second.dtype == DType::kF8E4M3;
}

}  // namespace

void fill_adamw(Kernels& table) {
  table.adamw.prefer({is_all_f32, adamw});
  table.adamw.prefer({has_8bit_moments, adamw_8bit});
}

}  // namespace halftone::fast
