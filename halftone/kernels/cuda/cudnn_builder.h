// A graph of cuDNN's operations, built with its backend API and compiled into a plan.
// Attention and convolution are such graphs.
#pragma once

#include <cudnn_graph.h>

#include <array>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "halftone/kernels/cuda/context.h"

namespace halftone::cuda {

void check(cudnnStatus_t status, const char* call);
#define HT_CUDNN(call) ::halftone::cuda::check((call), #call)

// cuDNN's handle, bound to the context's stream. A part of the context.
class Cudnn {
 public:
  explicit Cudnn(const Context& context);
  // Plans share it, so that the order in which parts of a context end does not matter.
  const std::shared_ptr<cudnnContext>& handle() const { return handle_; }

 private:
  std::shared_ptr<cudnnContext> handle_;
};

class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type);

  cudnnBackendDescriptor_t get() const { return descriptor_.get(); }
  void finalize();

  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
           const void* values);
  template <class T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    set(name, type, 1, &value);
  }
  void set(cudnnBackendAttributeName_t name, std::span<const int64_t> values) {
    set(name, CUDNN_TYPE_INT64, static_cast<int64_t>(values.size()), values.data());
  }
  void set(cudnnBackendAttributeName_t name, const Descriptor& value);

 private:
  struct Destroy {
    void operator()(void* descriptor) const { cudnn().cudnnBackendDestroyDescriptor(descriptor); }
  };
  std::unique_ptr<void, Destroy> descriptor_;
};

struct PlanPointer {
  int64_t id;
  const void* pointer;  // on the device; on the host for what is passed by value
};

class Plan {
 public:
  int64_t workspace_bytes() const { return workspace_bytes_; }
  void run(std::span<const PlanPointer> pointers, void* workspace) const;

  // With all that was compiled for it; empty where cuDNN has no text for such a plan.
  std::string text() const;
  // The plan again, on another handle or in another process.
  static Plan restored(const Cudnn& cudnn, const std::string& text);

 private:
  friend class GraphBuilder;
  Plan(std::shared_ptr<cudnnContext> handle, Descriptor plan);

  std::shared_ptr<cudnnContext> handle_;
  Descriptor plan_;
  int64_t workspace_bytes_ = 0;
};

using Dims = std::array<int64_t, 4>;

inline Dims packed_strides(const Dims& d) { return {d[1] * d[2] * d[3], d[2] * d[3], d[3], 1}; }

// A tensor of the graph under construction.
struct Operand {
  size_t index = 0;
  Dims dims{};
};

class GraphBuilder {
 public:
  // Memory that run() gives a pointer for, aligned to 16 bytes.
  Operand real(int64_t id, cudnnDataType_t dtype, const Dims& dims, const Dims& strides);
  Operand by_value(int64_t id);  // a float that run() reads on the host
  Operand temporary(cudnnDataType_t dtype, const Dims& dims, const Dims& strides);
  Operand temporary(cudnnDataType_t dtype, const Dims& dims) {
    return temporary(dtype, dims, packed_strides(dims));
  }

  void combine_into(cudnnPointwiseMode_t mode, Operand x, Operand b, Operand y);
  void copy_into(Operand x, Operand y);  // converts
  // Those below write a temporary of x's shape: floats unless said otherwise.
  Operand apply(cudnnPointwiseMode_t mode, Operand x);
  Operand combine(cudnnPointwiseMode_t mode, Operand x, Operand b);
  Operand index(Operand x, int64_t axis);  // I32: every element's index along an axis
  Operand logical(cudnnPointwiseMode_t mode, Operand x, Operand b);  // booleans
  Operand select(Operand predicate, Operand x, Operand otherwise);

  void reduce(cudnnReduceTensorOp_t how, Operand x, Operand y);
  void reshape(Operand x, Operand y);

  // Operands that hold the true M, N and K of every item of a batch.
  struct Overrides {
    const Operand *m = nullptr, *n = nullptr, *k = nullptr;
  };
  void matmul(Operand a, Operand b, Operand c, const Overrides& overrides);

  struct Convolution {
    std::array<int64_t, 2> strides{}, pre_padding{}, post_padding{};
  };
  void convolution(const Convolution& how, Operand x, Operand weight, Operand y);
  void convolution_input_grad(const Convolution& how, Operand dy, Operand weight, Operand dx);
  void convolution_weight_grad(const Convolution& how, Operand dy, Operand x, Operand dweight);

  struct Choice {
    std::vector<cudnnBackendNumericalNote_t> forbidden;  // engines with such a note are passed over
    bool fallback = false;                               // ask also for the last-resort engines
    int64_t most_workspace = INT64_MAX;
  };
  // The first plan that cuDNN proposes and that can be made; an Error where there is none.
  Plan build(const Cudnn& cudnn, const Choice& choice);

 private:
  Operand tensor(int64_t id, cudnnDataType_t dtype, const Dims& dims, const Dims& strides,
                 const cudnnBackendAttributeName_t* flag);
  void set(Descriptor& operation, cudnnBackendAttributeName_t name, Operand operand);
  static Descriptor convolution_detail(const Convolution& how);
  static Descriptor pointwise_detail(cudnnPointwiseMode_t mode, cudnnDataType_t math);
  struct Ports {
    const Operand *x = nullptr, *b = nullptr, *predicate = nullptr, *y = nullptr;
  };
  void pointwise(Descriptor detail, const Ports& ports);

  std::vector<Descriptor> tensors_, details_, operations_;
  int64_t next_id_ = 1000;  // of temporaries
};

}  // namespace halftone::cuda
