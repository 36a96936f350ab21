#include "halftone/engine/offline_shares.h"

#include <algorithm>
#include <map>

namespace halftone {
namespace {

struct SharedBatch {
  std::vector<size_t> pictures;
  size_t kind = 0;   // the first picture of its kind
  size_t first = 0;  // of its own pictures
  double cost = 0;
};

}  // namespace

std::vector<OfflineBatches> share_out(std::vector<OfflineWork> work, int processes, int batch) {
  std::map<std::string, std::vector<OfflineWork>> kinds;
  for (OfflineWork& one : work) kinds[one.kind].push_back(std::move(one));
  std::vector<SharedBatch> batches;
  for (auto& [name, all] : kinds) {
    const size_t first = std::ranges::min(all, {}, &OfflineWork::picture).picture;
    // Those that take as many steps end together.
    std::ranges::sort(all, [](const OfflineWork& a, const OfflineWork& b) {
      return a.steps != b.steps ? a.steps > b.steps : a.picture < b.picture;
    });
    // No process is without work because others have full batches.
    const auto count = static_cast<size_t>(processes);
    const size_t each = std::min(static_cast<size_t>(batch), (all.size() + count - 1) / count);
    for (size_t begin = 0; begin < all.size(); begin += each) {
      SharedBatch shared;
      shared.kind = first;
      for (size_t i = begin; i < std::min(begin + each, all.size()); ++i) {
        shared.pictures.push_back(all[i].picture);
        shared.cost += all[i].cost;
      }
      std::ranges::sort(shared.pictures);
      shared.first = shared.pictures[0];
      batches.push_back(std::move(shared));
    }
  }
  std::ranges::sort(batches, [](const SharedBatch& a, const SharedBatch& b) {
    return a.cost != b.cost ? a.cost > b.cost : a.first < b.first;
  });
  std::vector<std::vector<SharedBatch>> taken(static_cast<size_t>(processes));
  std::vector<double> load(static_cast<size_t>(processes));
  for (SharedBatch& shared : batches) {
    const auto least = std::ranges::min_element(load);
    *least += shared.cost;
    taken[static_cast<size_t>(least - load.begin())].push_back(std::move(shared));
  }
  std::vector<OfflineBatches> shares;
  for (auto& own : taken) {
    std::ranges::sort(own, [](const SharedBatch& a, const SharedBatch& b) {
      return a.kind != b.kind ? a.kind < b.kind : a.first < b.first;
    });
    shares.emplace_back();
    for (SharedBatch& shared : own) shares.back().push_back(std::move(shared.pictures));
  }
  return shares;
}

}  // namespace halftone
