// Pictures of a list, made a few at a time: what goes wrong with one does not stop the others.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "halftone/engine/offline_index.h"

namespace halftone {

class OfflineRows {
 public:
  struct Memory {
    int64_t process = 0;  // what the process holds besides, on a CPU
    int64_t free = 0;  // what it may take in all; on a device that is what the weights have left,
    bool limited = false;  // unless someone has set a limit
  };
  struct Doing {
    size_t picture = 0;
    int64_t steps_done = 0;  // of all pictures
  };
  // Told before every step; may throw Error{kCancelled}.
  using Tell = std::function<void(const Doing&)>;

  OfflineRows(OfflineList& list, LoadedModel& loaded, const Memory& memory,
              GenerateSeconds& seconds, Tell tell)
      : list_(list), loaded_(loaded), memory_(memory), seconds_(seconds), tell_(std::move(tell)) {}

  // Pictures of one kind (offline_shares.h), as many of them together as there is memory for. Each
  // is done then, or has its `error`. Where one cannot be written, none can: that is an Error.
  void make(const std::vector<size_t>& pictures);

 private:
  struct Row;

  template <class Work>
  auto attempt(size_t row, const Work& work) -> std::optional<decltype(work())>;
  size_t rows_that_fit(const std::vector<size_t>& rows);
  void make_rows(const std::vector<size_t>& rows);
  void make_together(const std::vector<size_t>& rows);
  void finish(Stepper& stepper, const Row& row);

  OfflineList& list_;
  LoadedModel& loaded_;
  const Memory memory_;
  GenerateSeconds& seconds_;
  const Tell tell_;
  int64_t steps_done_ = 0;
  bool cannot_write_ = false;
};

}  // namespace halftone
