// From a node and the views of its values to a kernel of a table.
#pragma once

#include <span>
#include <string>

#include "halftone/graph/graph.h"
#include "halftone/kernels/kernels.h"

namespace halftone {

void launch(const Node& node, std::span<const ConstView> inputs, std::span<const View> outputs,
            const Kernels& kernels, Stream stream);

// Adds what the kernel wants prepared; of views as plan_launch takes them.
void prepare_launch(const Node& node, std::span<const ConstView> inputs,
                    std::span<const View> outputs, const Kernels& kernels, const Stream& stream,
                    PreparationList& work);

// What is known before a launch. Views need shapes and dtypes only; those of inputs that are there
// hold some pointer that is not null.
struct LaunchPlan {
  int64_t workspace = 0;  // scratch memory that it takes
  int64_t library = 0;    // what libraries take besides
  std::string note;       // that it is slower than it should be, and why; otherwise empty
};
LaunchPlan plan_launch(const Node& node, std::span<const ConstView> inputs,
                       std::span<const View> outputs, const Kernels& kernels, const Stream& stream);

}  // namespace halftone
