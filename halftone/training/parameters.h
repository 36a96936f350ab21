// What is trained, in one piece of memory where the model runs: values that programs read as
// weights, gradients that programs give, and what the optimizer remembers, so that a step is one
// kernel over all of it.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "halftone/kernels/kernels.h"
#include "halftone/runtime/program.h"

namespace halftone {

struct ParameterOptions {
  bool small_moments = false;  // of the optimizer, in 8 bits with a scale for every 256 values
  bool average = false;        // keep a running mean of the values
  bool small_values = false;   // in BF16, rounded by chance at every step
};

class Parameters {
 public:
  // Initial values by name, in high precision, in the CPU's memory.
  Parameters(const std::map<std::string, Tensor>& initial, const ParameterOptions& options,
             const Kernels& kernels, Stream stream);

  int64_t count() const { return count_; }  // of values
  int64_t bytes() const;                    // that all of this takes
  // Views that stay valid, whose values change with every step.
  const Weights& weights() const { return weights_; }
  std::map<std::string, Tensor> values() const;  // copies in the CPU's memory, F32
  // The running mean where there is one, or the values: in the CPU's memory, as they are kept. What
  // lies there already is not copied, and changes with the next step.
  std::map<std::string, Tensor> averages() const;

  // Puts the running mean where programs read values, if there is one, and values back. Between the
  // two no step is made: they lie in the memory of one.
  void show_average();
  void show_values();

  // Takes the gradients of a program's last run: in place of those that are there, or beside them.
  // What the program does not use has none.
  void take_gradients(const Program& program, bool add);
  // A part of the memory that gradients lie in, and the weights that they are of.
  struct Bucket {
    int64_t begin = 0, end = 0;  // values
    std::vector<std::string> weights;
    int64_t count() const { return end - begin; }
  };
  // All of it, in parts of about so many values: each weight is in one.
  std::vector<Bucket> buckets(int64_t values) const;
  void take_gradients(const Program& program, const Bucket& bucket, bool add);
  // Where the model runs.
  std::span<float> gradients_of(const Bucket& bucket);
  std::map<std::string, Tensor> gradients() const;  // copies in the CPU's memory

  // Two sets of them: those that are there are set aside until others are taken and stand beside
  // them. In the CPU's memory nothing is copied; no step is made before both were looked at.
  void set_gradients_aside();
  struct GradientPair {
    std::map<std::string, Tensor> aside, now;
  };
  GradientPair gradient_pair() const;

  double gradient_norm();  // of all of them together

  // `how` without its views.
  void step(AdamWArgs how);

  // Everything but gradients, as tensors in the CPU's memory, copied as averages() are; and back.
  // An Error that names a tensor where it is not of this layout.
  std::map<std::string, Tensor> state() const;
  void restore(const std::map<std::string, Tensor>& state);

 private:
  Tensor allocate(DType dtype, int64_t count) const;
  Tensor zeros(DType dtype, int64_t count) const;
  Tensor slice(const Tensor& all, const std::string& name) const;
  std::map<std::string, Tensor> slices(const Tensor& all) const;
  Tensor fetch(const Tensor& from) const;    // a copy in the CPU's memory
  Tensor on_host(const Tensor& from) const;  // one only where it lies elsewhere
  void put(const Tensor& to, const Tensor& from) const;
  void copy(const Tensor& to, const Tensor& from) const;  // bytes, where the model runs
  // What is remembered between steps, by the name that it has in a state.
  std::map<std::string, Tensor> buffers() const;

  struct Place {
    int64_t begin = 0;
    Shape shape;
  };
  const Kernels& kernels_;
  Stream stream_;
  std::map<std::string, Place> places_;
  int64_t count_ = 0;
  Tensor values_, gradients_, first_, second_;
  Tensor first_scales_, second_scales_;  // of small moments
  Tensor average_;                       // where it is kept
  Tensor more_;                          // gradients on their way to being added, and their squares
  Tensor sum_;                           // [1]
  Tensor scratch_;                       // of summing
  Stream summing_;                       // with it
  Weights weights_;
};

}  // namespace halftone
