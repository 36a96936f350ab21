#include "halftone/kernels/cuda/cudnn_plans.h"

#include "halftone/base/cache_files.h"

namespace halftone::cuda {

Plan PlanTexts::get(const std::string& problem, const MakePlan& make) {
  const auto& cudnn = context_.part<Cudnn>();
  if (const std::string text = find(problem); !text.empty()) {
    try {
      return Plan::restored(cudnn, text);
    } catch (const Error&) {  // nothing that cuDNN can use, so it is made again
    }
  }
  Plan made = make(cudnn);
  keep(problem, made.text());
  return made;
}

void PlanTexts::prepare(const std::string& problem, const MakePlan& make, PreparationList& work) {
  if (!find(problem).empty()) return;
  {
    const std::lock_guard lock(mutex_);
    if (!begun_.insert(problem).second) return;
  }
  work.emplace_back([this, problem, make] {
    context_.make_current();
    const Cudnn own(context_);  // a handle is for one thread at a time
    keep(problem, make(own).text());
  });
}

std::string PlanTexts::find(const std::string& problem) {
  const std::lock_guard lock(mutex_);
  if (const auto found = texts_.find(problem); found != texts_.end()) return found->second;
  const std::string text = read_cache_file(file_of(problem), head_of(problem));
  if (!text.empty()) texts_.emplace(problem, text);
  return text;
}

void PlanTexts::keep(const std::string& problem, const std::string& text) {
  if (text.empty()) return;
  const std::lock_guard lock(mutex_);
  texts_[problem] = text;
  write_cache_file(file_of(problem), head_of(problem), text);
}

std::string PlanTexts::head_of(const std::string& problem) const {
  return fmt::format("cuDNN {} sm_{} {} multiprocessors {}\n{}", cudnn().cudnnGetVersion(),
                     context_.capability(), context_.multiprocessors(), context_.properties().name,
                     problem);
}

std::string PlanTexts::file_of(const std::string& problem) const {
  return cache_file("plan", head_of(problem));
}

}  // namespace halftone::cuda
