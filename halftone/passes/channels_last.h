// Pictures with their channels last, [B, H, W, C] in place of [B, C, H, W], between convolutions,
// group norms and what lies between them: tensor cores read them so, and tokens [B, H * W, C] are
// then views of them. Inputs, outputs and everything else stay as they are; permutations stand
// where both meet, and vanish where the graph had one of its own. Runs before gradients are added,
// which follow what they are of, and before `fold_silu`.
#pragma once

#include <memory>

#include "halftone/graph/graph.h"

namespace halftone {

std::shared_ptr<Graph> channels_last(const Graph& graph);

// SiLU behind a group norm with channels last that nothing else reads: the norm applies it.
std::shared_ptr<Graph> fold_silu(const Graph& graph);

}  // namespace halftone
