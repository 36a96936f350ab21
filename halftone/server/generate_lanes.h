// The models that pictures are made with, each in a lane of its own: loaded beside the work of the
// others, and evicted, the one that nobody has used for longest first, where memory is needed. For
// one thread, where it does not say otherwise.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "halftone/server/generate_lane.h"
#include "halftone/server/log.h"
#include "halftone/server/metrics.h"
#include "halftone/server/shelf.h"

namespace halftone {

class GenerateLanes {
 public:
  // What it works with outlives it. `loaded` is called when there may be something to take, from a
  // thread of its own; `before_load`, where there is one, in that thread with the lane's key.
  struct With {
    Engine& engine;
    Shelf& shelf;
    Metrics& metrics;
    Log& log;
    std::function<void()> loaded;
    std::function<void(const std::string&)> before_load;
  };
  explicit GenerateLanes(With with) : with_(std::move(with)) {}
  ~GenerateLanes();
  GenerateLanes(const GenerateLanes&) = delete;
  GenerateLanes& operator=(const GenerateLanes&) = delete;

  GenerateLane* find(const std::string& key);
  // Begins to load one; only while no other is loaded. Until it is taken, `loading` has its key.
  void load(const std::string& key, const std::shared_ptr<const ModelOnShelf>& model,
            const std::string& precision);
  const std::string& loading() const { return loading_; }
  // What has come of it, as soon as that is known: a lane that can be found from here on, or why
  // there is none.
  struct Outcome {
    std::string key;
    std::optional<Error> error;
  };
  std::optional<Outcome> take();

  std::vector<GenerateLane*> all();
  std::vector<std::string> keys() const;  // of those in memory; from any thread
  void end_all();                         // whatever runs ends; from any thread

  // An idle one goes. False where there is none.
  bool evict_one(const GenerateLane* except);
  bool any_busy(const GenerateLane* except) const;
  int64_t idle_bytes(const GenerateLane& except) const;

 private:
  With with_;
  std::string loading_;
  std::thread loader_;
  mutable std::mutex mutex_;
  struct Came {
    std::unique_ptr<GenerateLane> lane;
    std::optional<Error> error;  // instead of it
  };
  std::optional<Came> came_;  // under the mutex
  // Changed by the one thread, under the mutex; read by others under it.
  std::list<std::pair<std::string, std::unique_ptr<GenerateLane>>> lanes_;
};

}  // namespace halftone
