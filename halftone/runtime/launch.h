// From a node and the views of its values to a kernel of a table.
#pragma once

#include <span>

#include "halftone/graph/graph.h"
#include "halftone/kernels/kernels.h"

namespace halftone {

void launch(const Node& node, std::span<const ConstView> inputs, std::span<const View> outputs,
            const Kernels& kernels, Stream stream);

// Scratch memory that this takes. Views need shapes and dtypes only; those of inputs that are there
// hold some pointer that is not null.
int64_t workspace_bytes(const Node& node, std::span<const ConstView> inputs,
                        std::span<const View> outputs, const Kernels& kernels,
                        const Stream& stream);

}  // namespace halftone
