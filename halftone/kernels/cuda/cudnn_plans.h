// Plans of cuDNN as text, which holds the machine code that was compiled for them: made by several
// threads at once, remembered in files, and made a plan again in a millisecond.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "halftone/kernels/cuda/cudnn_builder.h"

namespace halftone::cuda {

using MakePlan = std::function<Plan(const Cudnn&)>;

// A part of the context.
class PlanTexts {
 public:
  explicit PlanTexts(Context& context) : context_(context) {}

  // The plan of a problem, whose description says all that it depends on.
  Plan get(const std::string& problem, const MakePlan& make);
  // Adds the work of making its text, unless that is there or has been added before.
  void prepare(const std::string& problem, const MakePlan& make, PreparationList& work);

 private:
  std::string find(const std::string& problem);
  void keep(const std::string& problem, const std::string& text);
  std::string head_of(const std::string& problem) const;
  std::string file_of(const std::string& problem) const;

  Context& context_;
  std::mutex mutex_;  // of what follows
  std::map<std::string, std::string> texts_;
  std::set<std::string> begun_;
};

}  // namespace halftone::cuda
