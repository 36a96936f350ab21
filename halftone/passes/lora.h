// Adds low-rank adapters beside linears: y = linear(x) + ((x A^T) * strength) B^T. Adapters are
// stacked along the rank, so that one pair of products serves all of them, and strengths are an
// input, one per row of the batch: a new strength builds nothing again.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "halftone/graph/graph.h"

namespace halftone {

struct LoraSites {
  int64_t rank = 0;               // of all adapters together
  std::set<std::string> weights;  // names of the linears' weights
};

inline constexpr const char* kLoraStrength = "lora.strength";  // F32 [B, rank]
std::string lora_down_name(const std::string& weight);         // A [rank, in]
std::string lora_up_name(const std::string& weight);           // B [out, rank]

// Every site must be a linear of the graph whose input's first dimension is the batch.
std::shared_ptr<Graph> attach_lora(const Graph& graph, const LoraSites& sites);

}  // namespace halftone
