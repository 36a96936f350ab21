#include "halftone/nn/modulation.h"

namespace halftone::nn {

std::vector<Value> split_per_item(Value x, int parts) {
  return split(reshape(x, {x.dim(0), 1, x.dim(1)}), parts, 2);
}

std::vector<Modulation> split_modulation(Value x, int sets) {
  const auto parts = split_per_item(x, 3 * sets);
  std::vector<Modulation> result;
  for (size_t i = 0; i < parts.size(); i += 3) {
    result.push_back({parts[i], 1.0f + parts[i + 1], parts[i + 2]});
  }
  return result;
}

}  // namespace halftone::nn
