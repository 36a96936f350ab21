// Weights of a component from its checkpoint, every tensor accounted for.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "halftone/graph/graph.h"
#include "halftone/io/checkpoint.h"
#include "halftone/runtime/program.h"

namespace halftone {

// Binds the weights of `graphs` to the checkpoint's tensors (views of the file, in the dtype they
// are stored in). A weight that is missing or mis-shaped, and a tensor that no graph uses and that
// `known_unused` does not excuse, are listed by name in one Error. `name_in_file` maps a weight's
// name to the tensor's.
Weights load_weights(const Checkpoint& checkpoint, std::span<const std::shared_ptr<Graph>> graphs,
                     const std::function<std::string(const std::string&)>& name_in_file,
                     const std::function<bool(std::string_view)>& known_unused);

}  // namespace halftone
