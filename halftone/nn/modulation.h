// Adaptive norms: a condition, one row per item of the batch, scales and shifts what a block reads
// and gates what it adds.
#pragma once

#include <vector>

#include "halftone/graph/ops.h"

namespace halftone::nn {

// [B, parts * C] -> parts of [B, 1, C], which broadcast over tokens.
std::vector<Value> split_per_item(Value x, int parts);

struct Modulation {
  Value shift, scale, gate;  // [B, 1, C]; the scale has 1 added
};
// From [B, sets * 3 * C]: shift, scale and gate of each set, in this order.
std::vector<Modulation> split_modulation(Value x, int sets);

inline Value modulate(Value normed, const Modulation& by) { return normed * by.scale + by.shift; }
inline Value add_gated(Value x, Value y, const Modulation& by) { return x + y * by.gate; }

}  // namespace halftone::nn
