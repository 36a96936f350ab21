#include "halftone/models/weights.h"

#include <unordered_set>

#include "halftone/base/error.h"

namespace halftone {
namespace {

// "3 missing: 'a', 'b', 'c'", cut after a few names.
std::string list(const char* what, const std::vector<std::string>& names) {
  constexpr size_t kMost = 8;
  std::string out = fmt::format("{} {}: ", names.size(), what);
  for (size_t i = 0; i < std::min(kMost, names.size()); ++i) {
    out += (i > 0 ? ", " : "") + names[i];
  }
  if (names.size() > kMost) out += ", ...";
  return out;
}

}  // namespace

Weights load_weights(const Checkpoint& checkpoint, std::span<const std::shared_ptr<Graph>> graphs,
                     const std::function<std::string(const std::string&)>& name_in_file,
                     const std::function<bool(std::string_view)>& known_unused) {
  Weights weights;
  std::unordered_set<std::string> used;
  std::vector<std::string> missing, misshaped, unexpected;
  for (const auto& graph : graphs) {
    for (const auto& [name, value] : graph->weights()) {
      if (weights.contains(name)) continue;
      const std::string stored = name_in_file(name);
      const Checkpoint::Item* item = checkpoint.find(stored);
      if (item == nullptr) {
        missing.push_back("'" + printable(stored) + "'");
        continue;
      }
      used.insert(stored);
      if (item->entry->shape != value.shape() || !is_high_precision(item->entry->dtype)) {
        misshaped.push_back(fmt::format("'{}' is {} {} instead of {}", printable(stored),
                                        name_of(item->entry->dtype), item->entry->shape,
                                        value.shape()));
        continue;
      }
      weights.emplace(name, item->file->tensor(*item->entry));
    }
  }
  for (const Checkpoint::Item& item : checkpoint.items()) {
    if (!used.contains(item.entry->name) && !known_unused(item.entry->name)) {
      unexpected.push_back("'" + printable(item.entry->name) + "'");
    }
  }
  std::string problems;
  const auto add = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) problems += (problems.empty() ? "" : "; ") + list(what, names);
  };
  add("missing", missing);
  add("mis-shaped", misshaped);
  add("unexpected", unexpected);
  if (!problems.empty()) {
    throw Error(ErrorCode::kInvalidInput, checkpoint.path().string(), "tensors do not fit: {}",
                problems);
  }
  return weights;
}

}  // namespace halftone
