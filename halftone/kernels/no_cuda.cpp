// In place of kernels/cuda in builds without it.
#include "halftone/base/error.h"
#include "halftone/kernels/cuda/backend.h"

namespace halftone {
namespace {

[[noreturn]] void no_cuda() {
  throw Error(ErrorCode::kUnsupported, "--device cuda",
              "this build has no CUDA backend; build with: cmake --preset cuda");
}

}  // namespace

bool has_cuda() { return false; }
std::unique_ptr<DeviceContext> make_cuda_context(int) { no_cuda(); }
const Kernels& cuda_kernels() { no_cuda(); }

}  // namespace halftone
