// Scratch memory of a kernel: asked for before a run, carved up in the same order during it.
#pragma once

#include <initializer_list>

#include "halftone/base/error.h"
#include "halftone/kernels/kernels.h"

namespace halftone {

inline constexpr int64_t kWorkspaceAlignment = 256;  // what cuBLASLt likes best

inline int64_t aligned_bytes(int64_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}
// Bytes for arrays of so many floats each.
inline int64_t float_workspace(std::initializer_list<int64_t> counts) {
  int64_t bytes = 0;
  for (const int64_t count : counts) bytes += aligned_bytes(count * 4);
  return bytes;
}

class Workspace {
 public:
  explicit Workspace(Stream stream) : next_(stream.workspace), left_(stream.workspace_bytes) {}

  float* floats(int64_t count) { return reinterpret_cast<float*>(bytes(count * 4)); }
  std::byte* bytes(int64_t count) {
    std::byte* taken = next_;
    const int64_t size = aligned_bytes(count);
    HT_ASSERT(size <= left_);
    next_ += size;
    left_ -= size;
    return taken;
  }
  // With what is left, for a kernel that runs within this one.
  Stream rest(Stream stream) const {
    stream.workspace = next_;
    stream.workspace_bytes = left_;
    return stream;
  }

 private:
  std::byte* next_;
  int64_t left_;
};

}  // namespace halftone
