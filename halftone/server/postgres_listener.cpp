#include "halftone/server/postgres_listener.h"

#include <poll.h>

#include <algorithm>
#include <array>

#include "halftone/base/error.h"

namespace halftone::postgres {
namespace {

constexpr int kShortestWait = 50, kLongestWait = 5000;  // milliseconds between two attempts
constexpr int kCheckEvery = 30000;                      // whether the connection is still there

}  // namespace

Listener::Listener(std::string url, std::string channel, std::function<void()> told)
    : url_(std::move(url)),
      channel_(std::move(channel)),
      told_(std::move(told)),
      thread_([this] { work(); }) {}

Listener::~Listener() {
  stop_.set();
  thread_.join();
}

void Listener::work() {
  while (!stopped_within(wait_)) {
    wait_ = std::clamp(2 * wait_, kShortestWait, kLongestWait);
    try {
      listen();
    } catch (const Error&) {  // tried again, ever more patiently; calls to the store tell of it
    }
  }
}

void Listener::listen() {
  Connection connection(url_, &stop_);
  connection.run_script("LISTEN " + channel_);
  wait_ = 0;
  told_();  // what happened before could not be heard
  for (;;) {
    std::array<pollfd, 2> fds = {pollfd{connection.socket(), POLLIN, 0},
                                 pollfd{stop_.fd(), POLLIN, 0}};
    const int ready = ::poll(fds.data(), fds.size(), kCheckEvery);
    if (fds[1].revents != 0) return;
    if (ready == 0) connection.run_script("SELECT 1");
    bool any = false;
    const bool connected = connection.take_notifications(any);
    if (any) told_();
    if (!connected) return;
  }
}

bool Listener::stopped_within(int milliseconds) const {
  pollfd fd = {stop_.fd(), POLLIN, 0};
  return ::poll(&fd, 1, milliseconds) > 0;
}

}  // namespace halftone::postgres
