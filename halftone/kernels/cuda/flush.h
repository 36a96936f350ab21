// Empties a GPU's caches before something is timed.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace halftone::cuda {

// Reads so many bytes. Writing them would leave lines in the cache that whoever is timed next would
// have to write back.
void read_everything(const std::byte* data, size_t bytes, cudaStream_t stream);

}  // namespace halftone::cuda
