// Tensors in a device's memory for tests of its kernels: upload, launch with scratch memory,
// download.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "halftone/kernels/kernels.h"
#include "halftone/tensor/tensor.h"

namespace halftone::test {

class DeviceTensor {
 public:
  DeviceTensor() = default;
  // Filled with a pattern, so that what a kernel does not write shows.
  DeviceTensor(DType dtype, const Shape& shape, const Stream& stream)
      : DeviceTensor(patterned(dtype, shape), stream) {}
  DeviceTensor(const Tensor& from, const Stream& stream)
      : context_(stream.device), dtype_(from.dtype()), shape_(from.shape()) {
    storage_ = context_->allocate(std::max<int64_t>(from.byte_size(), 16), "a test's tensor");
    if (from.byte_size() > 0) context_->upload(storage_->address(), from.bytes());
  }

  template <class T>
  T* data() const {
    return storage_ ? reinterpret_cast<T*>(storage_->address()) : nullptr;
  }

  Tensor download() const {
    Tensor to = Tensor::empty(dtype_, shape_);
    if (to.byte_size() > 0) context_->download(to.mutable_bytes(), storage_->address());
    return to;
  }

 private:
  static Tensor patterned(DType dtype, const Shape& shape) {
    Tensor t = Tensor::empty(dtype, shape);
    if (t.byte_size() > 0) {
      auto bytes = t.mutable_bytes();
      std::fill(bytes.begin(), bytes.end(), std::byte{0xA5});
    }
    return t;
  }

  DeviceContext* context_ = nullptr;
  std::shared_ptr<Storage> storage_;
  DType dtype_ = DType::kF32;
  Shape shape_{0};
};

// Runs a kernel with the scratch memory that it asks for, and waits for it.
template <class Args>
void launch_and_wait(const Kernel<Args>& kernel, const Args& args, Stream stream) {
  ASSERT_TRUE(kernel.supports(args));
  std::shared_ptr<Storage> workspace;
  stream.workspace_bytes = kernel.workspace(args, stream);
  workspace = stream.device->allocate(stream.workspace_bytes, "a test's scratch memory");
  stream.workspace = workspace->address();
  kernel.launch(args, stream);
  stream.device->synchronize();
}

}  // namespace halftone::test
