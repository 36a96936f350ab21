// A denoiser's graph made one that is trained: a loss behind it, and the loss' gradients.
#pragma once

#include <span>
#include <string>

#include "halftone/graph/graph.h"

namespace halftone {

// The graph has the output sample [rows, ...] and weights of these names. Adds
//   inputs   target, as sample, unless the graph has an output of that name; loss_weight [rows]
//   outputs  loss [1]: the mean over rows of loss_weight times a row's mean squared difference;
//            and of each weight its gradient, under gradient_name
// For CompileOptions::extend: linears have their formats by then, and gradients go through them.
void add_loss(Graph& graph, std::span<const std::string> trained);

std::string gradient_name(const std::string& weight);  // "gradient of layers.0.w1.0.lora_A"

}  // namespace halftone
