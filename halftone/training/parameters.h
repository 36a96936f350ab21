// What is trained, in one piece of memory where the model runs: values that programs read as
// weights, gradients that programs give, and what the optimizer remembers, so that a step is one
// kernel over all of it.
#pragma once

#include <map>
#include <string>

#include "halftone/kernels/kernels.h"
#include "halftone/runtime/program.h"

namespace halftone {

class Parameters {
 public:
  // Initial values by name, F32 in the CPU's memory.
  Parameters(const std::map<std::string, Tensor>& initial, const Kernels& kernels, Stream stream);

  int64_t count() const { return count_; }  // of values
  // Views that stay valid, whose values change with every step.
  const Weights& weights() const { return weights_; }
  std::map<std::string, Tensor> values() const;  // copies in the CPU's memory

  // Takes the gradients of a program's last run: in place of those that are there, or beside them.
  void take_gradients(const Program& program, bool add);
  std::map<std::string, Tensor> gradients() const;  // copies in the CPU's memory

  double gradient_norm();  // of all of them together

  // `how` without its views.
  void step(AdamWArgs how);

 private:
  Tensor allocate(const char* purpose) const;
  Tensor slice(const Tensor& all, const std::string& name) const;
  std::map<std::string, Tensor> copies(const Tensor& all) const;

  struct Place {
    int64_t begin = 0;
    Shape shape;
  };
  const Kernels& kernels_;
  Stream stream_;
  std::map<std::string, Place> places_;
  int64_t count_ = 0;
  Tensor values_, gradients_, first_, second_;
  Tensor more_;  // gradients on their way to being added, and their squares
  Tensor sum_;   // [1]
  Weights weights_;
};

}  // namespace halftone
