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
std::string why_no_device_group(const DeviceContext&) { return "this build has no CUDA backend"; }
std::string new_group_key(const DeviceContext&) { no_cuda(); }
std::unique_ptr<DeviceGroup> join_device_group(DeviceContext&, const GroupPlace&,
                                               const DeviceGroup::Stop&) {
  no_cuda();
}
const Kernels& cuda_kernels() { no_cuda(); }

}  // namespace halftone
