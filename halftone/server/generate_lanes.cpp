#include "halftone/server/generate_lanes.h"

#include "halftone/base/error.h"

namespace halftone {

GenerateLane* GenerateLanes::find(const std::string& key) {
  for (const auto& [name, lane] : lanes_) {
    if (name == key) return lane.get();
  }
  return nullptr;
}

void GenerateLanes::load(const std::string& key, const std::shared_ptr<const ModelOnShelf>& model,
                         const std::string& precision) {
  HT_ASSERT(loading_.empty() && !loader_.joinable());
  // A thread for each: those that OpenMP keeps for it go with it.
  loader_ = std::thread([this, key, model, precision] {
    Came came;
    try {
      if (with_.before_load) with_.before_load(key);
      came.lane = std::make_unique<GenerateLane>(with_.engine, with_.shelf, *model, precision);
    } catch (const Error& error) {
      came.error = error;
    } catch (const std::exception& error) {  // of a library
      came.error = Error(ErrorCode::kIo, "model", "{}", printable(error.what()));
    }
    {
      const std::scoped_lock lock(mutex_);
      came_ = std::move(came);
    }
    with_.loaded();
  });
  loading_ = key;
}

GenerateLanes::~GenerateLanes() {
  if (loader_.joinable()) loader_.join();
}

std::optional<GenerateLanes::Outcome> GenerateLanes::take() {
  Came came;
  {
    const std::scoped_lock lock(mutex_);
    if (!came_) return std::nullopt;
    came = std::move(*came_);
    came_.reset();
  }
  loader_.join();
  Outcome outcome{loading_, came.error};
  loading_.clear();
  if (came.lane == nullptr) return outcome;
  const LoadedModel& loaded = came.lane->loaded();
  with_.log.info("model loaded", {{"model", outcome.key}, {"seconds", loaded.seconds}});
  for (const std::string& line : loaded.fallbacks) {
    with_.metrics.add("halftone_fallbacks_total");
    with_.log.warn("fallback", {{"model", outcome.key}, {"what", line}});
  }
  const std::scoped_lock lock(mutex_);
  lanes_.emplace_back(outcome.key, std::move(came.lane));
  return outcome;
}

std::vector<GenerateLane*> GenerateLanes::all() {
  std::vector<GenerateLane*> found;
  for (const auto& [key, lane] : lanes_) found.push_back(lane.get());
  return found;
}

std::vector<std::string> GenerateLanes::keys() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::string> found;
  for (const auto& [key, lane] : lanes_) found.push_back(key);
  return found;
}

void GenerateLanes::end_all() {
  const std::scoped_lock lock(mutex_);
  for (const auto& [key, lane] : lanes_) lane->end();
}

bool GenerateLanes::any_busy(const GenerateLane* except) const {
  for (const auto& [key, lane] : lanes_) {
    if (lane.get() != except && lane->is_busy()) return true;
  }
  return false;
}

int64_t GenerateLanes::idle_bytes(const GenerateLane& except) const {
  int64_t bytes = 0;
  for (const auto& [key, lane] : lanes_) {
    if (!lane->is_busy() && lane.get() != &except) bytes += lane->held();
  }
  return bytes;
}

bool GenerateLanes::evict_one(const GenerateLane* except) {
  auto oldest = lanes_.end();
  for (auto it = lanes_.begin(); it != lanes_.end(); ++it) {
    if (it->second->is_busy() || it->second.get() == except) continue;
    if (oldest == lanes_.end() || it->second->last_used < oldest->second->last_used) oldest = it;
  }
  if (oldest == lanes_.end()) return false;
  with_.log.info("model evicted", {{"model", oldest->first}});
  const std::scoped_lock lock(mutex_);
  lanes_.erase(oldest);
  return true;
}

}  // namespace halftone
