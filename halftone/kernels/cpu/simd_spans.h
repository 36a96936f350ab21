// Vectorized pieces of the quantizer over contiguous spans. Each is compiled for several
// instruction sets and the best one is chosen at run time. All are bit-equal to numerics/.
#pragma once

#include <cstdint>

#include "halftone/base/random.h"
#include "halftone/kernels/kernels.h"
#include "halftone/numerics/format.h"
#include "halftone/tensor/dtype.h"

namespace halftone::simd {

// Per-scale arrays hold a multiple of this many entries; those past the end are scratch.
inline constexpr int64_t kScalePadding = 16;

// A span of values in F32, BF16 or F16.
struct Span {
  const void* data;
  DType dtype;
  int64_t size;
};

// Bits of the largest magnitude as an F32 (NaN above Inf above numbers).
uint32_t amax_bits(Span x);

// amax[i] = largest magnitude of the i-th block of 16 or 32 values; the last may be short.
void block_amax(Span x, int block, float* amax);

// Scale codes and quantizing factors of MX blocks.
struct MxScales {
  ElementType element;
  ExponentRounding rounding;
};
void mx_scales(const float* amax, int64_t blocks, MxScales rule, uint8_t* codes, float* factors);

// The same for NVFP4 under a global scale g, the largest value of a block mapping to 6.
struct Nvfp4Scales {
  float g;
  float lower_clamp;
};
void nvfp4_scales(const float* amax, int64_t blocks, Nvfp4Scales rule, uint8_t* codes,
                  float* factors);
// 4 over 6: needs the values too.
void four_over_six_scales(Span x, const float* amax, Nvfp4Scales rule, uint8_t* codes,
                          float* factors);

// codes = round(x * factor), with factors[i] for the i-th `block` values, or factors[0] for all
// when block is 0. Stochastic when `random` holds a word per value. E2M1 is packed.
struct Encode {
  ElementType element;
  int block;
  const float* factors;
  const uint32_t* random;
};
void encode(Span x, const Encode& how, uint8_t* codes);

// y = code * scales[i] (* global) for the i-th block, or scales[0] when block is 0.
struct Decode {
  ElementType element;
  int block;
  const float* scales;
  float global;  // applied after the block scale where the format has one, otherwise 1
};
void decode(const uint8_t* codes, int64_t size, const Decode& how, DType dtype, void* y);

// Words first .. first + count of a key's sequence; `first` and room for `count` rounded up are
// multiples of 64.
void random_words(PhiloxKey key, uint64_t first, int64_t count, uint32_t* words);

// Overrides the quantizing entries of a table, where this CPU has what they need.
void fill_quantize(Kernels& table);

// Whether this CPU has the least instruction set that the spans are compiled for.
bool available();

// Name of the instruction set in use, such as "AVX3".
const char* instruction_set();

}  // namespace halftone::simd
