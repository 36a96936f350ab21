// A thread that hears of changes that any server made: LISTEN on a connection of its own.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "halftone/server/postgres_connection.h"

namespace halftone::postgres {

class Listener {
 public:
  Listener(std::string url, std::string channel, std::function<void()> told);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

 private:
  void work();
  void listen();  // until the connection is lost, or it is to stop
  bool stopped_within(int milliseconds) const;

  const std::string url_, channel_;
  const std::function<void()> told_;
  Wake stop_;
  int wait_ = 0;        // milliseconds before the next attempt to connect
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace halftone::postgres
