// The CUDA backend as everyone else sees it. CUDA's own headers stay inside this folder.
#pragma once

#include <memory>

#include "halftone/kernels/kernels.h"

namespace halftone {

// Whether this build has the backend at all.
bool has_cuda();

// GPU number `index`: stream, library handles, caches. An Error in a build without CUDA, and where
// there is no such GPU.
std::unique_ptr<DeviceContext> make_cuda_context(int index);

// Kernels for every GPU; what one can do is asked of the context that comes with a launch.
const Kernels& cuda_kernels();

}  // namespace halftone
