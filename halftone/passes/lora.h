// Adds low-rank adapters beside linears: y = linear(x) + sum over adapters ((x A^T) * strength)
// B^T; and beside convolutions, where A is a convolution of the same kind with few outputs and B
// one of single pixels. Each adapter has a pair of products of its own, so that a row has the same
// bits whichever other adapters its batch has; strengths are inputs, one per row of the batch: a
// new strength builds nothing again.
#pragma once

#include <memory>
#include <set>
#include <span>
#include <string>

#include "halftone/graph/graph.h"

namespace halftone {

// Where one adapter goes.
struct LoraSites {
  int64_t rank = 0;               // of all its modules: those of lower rank are filled up
  std::set<std::string> weights;  // names of the weights of linears and convolutions
  float dropout = 0;              // of what A reads, while it is trained
};

// Names for adapter number `slot` of those that are attached.
std::string lora_strength_name(size_t slot);                             // F32 [B, rank]
std::string lora_dropout_name(size_t slot);                              // I32 [B, 4], keys
std::string lora_down_name(const std::string& weight, size_t slot = 0);  // A [rank, in, ...]
std::string lora_up_name(const std::string& weight, size_t slot = 0);    // B [out, rank, ...]

// Every site must be a linear or a convolution of the graph whose input's first dimension is the
// batch. Dropout is for linears.
std::shared_ptr<Graph> attach_lora(const Graph& graph, std::span<const LoraSites> adapters);

}  // namespace halftone
