#include "halftone/quantize/rounder.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/kernels/quantize.h"

namespace halftone {

namespace fs = std::filesystem;

fs::path Rounder::file(int index) const {
  fs::path path = output_;
  path += fmt::format(".rounded-{}.safetensors", index);
  return path;
}

std::string Rounder::begin(RoundedLayout layout) {
  layout_ = std::move(layout);
  try {
    for (; path_exists(file(files_)); ++files_) rounded_.merge(read_rounded(file(files_), layout_));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCancelled) throw;
    return error.what();  // this one and those after it are written anew
  }
  return {};
}

bool Rounder::has_all(const std::string& weight) const {
  const auto& formats = layout_.weights.at(weight).formats;
  return std::all_of(formats.begin(), formats.end(), [&](const Format& format) {
    return rounded_.contains({weight, std::string(format.name)});
  });
}

std::vector<MomentGroup> Rounder::left() const {
  std::map<int, MomentGroup> groups;
  for (const LinearInfo& linear : model_.linears()) {
    // Calibration watches the first, whether it is rounded or not.
    MomentGroup& group =
        groups.emplace(linear.group, MomentGroup{linear.weight, linear.shape[1], {}}).first->second;
    if (layout_.weights.contains(linear.weight) && !has_all(linear.weight)) {
      group.weights.push_back(linear.weight);
    }
  }
  std::vector<MomentGroup> left;
  for (auto& [id, group] : groups) {
    if (!group.weights.empty()) left.push_back(std::move(group));
  }
  return left;
}

void Rounder::round(const std::vector<MomentGroup>& groups, const Calibration& calibration,
                    const ProgressFn& progress) {
  int64_t total = 0, done = 0;
  for (const MomentGroup& group : groups) total += static_cast<int64_t>(group.weights.size());
  RoundedWeights made;
  for (const MomentGroup& group : groups) {
    progress({group.first, done, total});
    const InputStatistics inputs(calibration.moments.at(group.first), threads_);
    for (const std::string& name : group.weights) {
      for (const Format& format : layout_.weights.at(name).formats) {
        progress({name, done, total});  // compensating takes a while
        made.insert_or_assign({name, std::string(format.name)},
                              quantize_compensated(std::get<Tensor>(model_.originals().at(name)),
                                                   format, inputs, cpu_kernels(), {threads_}));
      }
      ++done;
    }
  }
  // From here on they lie in the file.
  write_rounded(file(files_), layout_.fingerprint, made);
  made = {};
  rounded_.merge(read_rounded(file(files_++), layout_));
}

WeightQuantizer Rounder::function() {
  if (layout_.weights.empty()) return {};
  return [this](const std::string& name, const Tensor& weight, const Format& format) {
    const auto key = std::pair(name, std::string(format.name));
    const auto found = rounded_.find(key);
    if (found != rounded_.end()) return found->second;
    // A recipe may choose linears whose inputs calibration does not watch.
    const auto plain = plain_.find(key);
    if (plain != plain_.end()) return plain->second;
    return plain_.emplace(key, quantize(cpu_kernels(), weight, format, {}, {threads_}))
        .first->second;
  };
}

void Rounder::check_intact() const {
  for (const auto& [key, q] : rounded_) halftone::check_intact(q);
}

void Rounder::remove_files() const {
  std::error_code ignored;
  for (int i = 0; path_exists(file(i)); ++i) fs::remove(file(i), ignored);
}

}  // namespace halftone
