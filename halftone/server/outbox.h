// Changes of jobs on their way to the store. While it cannot take them, for want of room, say, they
// wait here, those of a job in their order; how far a job is, which is told again, is left out. For
// one thread.
#pragma once

#include <string>
#include <vector>

#include "halftone/server/log.h"
#include "halftone/server/store.h"

namespace halftone {

class Outbox {
 public:
  // Both outlive it.
  Outbox(Store& store, Log& log) : store_(store), log_(log) {}

  // Jobs that another server has by now.
  std::vector<std::string> put(JobChange change);
  std::vector<std::string> put_again();  // those that wait, in their order
  bool empty() const { return waiting_.empty(); }

 private:
  Store& store_;
  Log& log_;
  std::vector<JobChange> waiting_;
  double told_ = 0;
};

}  // namespace halftone
