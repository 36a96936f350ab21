// The CUDA backend as everyone else sees it. CUDA's own headers stay inside this folder.
#pragma once

#include <memory>

#include "halftone/kernels/device_group.h"
#include "halftone/kernels/kernels.h"

namespace halftone {

// Whether this build has the backend at all.
bool has_cuda();

// GPU number `index`: stream, library handles, caches. An Error in a build without CUDA, and where
// there is no such GPU.
std::unique_ptr<DeviceContext> make_cuda_context(int index);

// Why this device cannot be one of a DeviceGroup, a line; empty: it can.
std::string why_no_device_group(const DeviceContext& device);
// Of a new group, from one of its processes for all.
std::string new_group_key(const DeviceContext& device);
// With NCCL. All processes of the group call it at the same time; an Error where one does not come.
std::unique_ptr<DeviceGroup> join_device_group(DeviceContext& device, const GroupPlace& place,
                                               const DeviceGroup::Stop& stop);

// Kernels for every GPU; what one can do is asked of the context that comes with a launch.
const Kernels& cuda_kernels();

}  // namespace halftone
