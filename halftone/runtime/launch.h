// From a node and the views of its values to a kernel of a table.
#pragma once

#include <span>

#include "halftone/graph/graph.h"
#include "halftone/kernels/kernels.h"

namespace halftone {

void launch(const Node& node, std::span<const ConstView> inputs, std::span<const View> outputs,
            const Kernels& kernels, Stream stream);

}  // namespace halftone
