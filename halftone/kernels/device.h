// What a device other than the CPU offers besides kernels: memory, copies, and launches that are
// recorded once and replayed. No two contexts share anything; threads that share one take turns
// (DeviceGuard).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "halftone/tensor/storage.h"

namespace halftone {

// Launches that were recorded, ready to run again on the same addresses.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay() = 0;
};

// A point among launches, which any thread may wait for without a DeviceGuard.
class LaunchPoint {
 public:
  virtual ~LaunchPoint() = default;
  virtual void wait() = 0;
};

// Copies between the device and the CPU's memory beside launches, by a thread of its own, without a
// DeviceGuard. They are done on return.
class SideCopies {
 public:
  virtual ~SideCopies() = default;
  virtual void download(std::span<std::byte> to, const std::byte* from) = 0;
  virtual void upload(std::byte* to, std::span<const std::byte> from) = 0;
};

struct DeviceMemoryInfo {
  int64_t free = 0, total = 0;      // of the device, whoever uses it
  int64_t held = 0, most_held = 0;  // by this context now, and at most since it was made or
                                    // forget_most_held was called
};

class DeviceContext {
 public:
  virtual ~DeviceContext() = default;

  virtual Device device() const = 0;
  virtual DeviceMemoryInfo memory() const = 0;
  virtual void forget_most_held() {}

  // Uninitialized memory. Too little is an Error that says how much is for what, and how much is
  // free.
  virtual std::shared_ptr<Storage> allocate(int64_t bytes, const std::string& purpose) = 0;

  // Both are in order with launches; the host's bytes are free to change, or there, on return.
  virtual void upload(std::byte* to, std::span<const std::byte> from) = 0;
  virtual void download(std::span<std::byte> to, const std::byte* from) = 0;
  // Within the device's memory, in order with launches.
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;

  // Whether there is memory behind its addresses; not where plans are made of what is not there.
  virtual bool holds() const { return true; }

  // The CPU's memory that prefetches read beside launches. Where the system lets no more be pinned
  // it is ordinary memory, which is noted as a fallback: prefetches then hold up whoever launches.
  virtual std::shared_ptr<Storage> allocate_pinned(int64_t bytes, const std::string& purpose) = 0;
  // Copies to the device beside launches, one after the other. It begins when what was launched so
  // far is done, so that what that reads may be overwritten. The host's bytes stay as they are
  // until then. Returns a number for `await`.
  virtual int prefetch(std::byte* to, std::span<const std::byte> from) = 0;
  // What is launched from now on begins after this copy. Every prefetch is awaited once, those of a
  // recording within it.
  virtual void await(int copy) = 0;

  // Behind all that was launched so far, which is not being recorded.
  virtual std::unique_ptr<LaunchPoint> point() = 0;
  virtual std::unique_ptr<SideCopies> side_copies() = 0;
  // The same text for the same device in every process of a machine.
  virtual std::string identity() const { return device().str(); }

  // Whether products of block-scaled operands run in their own format.
  virtual bool multiplies_blocks() const { return false; }
  // Whether kernels of convolutions are to lie there as [O, kh, kw, C].
  virtual bool channels_last() const { return false; }

  virtual void synchronize() = 0;  // an Error where a launch has failed

  // Records what `launches` launches without running it.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& launches) = 0;

  // Bytes that a large copy reads and writes per second.
  virtual double copy_bandwidth() = 0;

  // Seconds that these launches take on the device, with nothing of theirs in its caches and
  // without what the host takes to launch them.
  virtual double time(const std::function<void()>& launches) = 0;

  // Device time since the last mark, in seconds; the first mark returns 0.
  virtual double mark() = 0;

  // Whether the same launches give the same bits in every run, whatever that costs: nothing is
  // chosen by measuring it, and no sum depends on which thread comes first.
  void set_deterministic(bool deterministic) { deterministic_ = deterministic; }
  bool deterministic() const { return deterministic_; }

  // What ran in another way than it should have, a line each.
  void note_fallback(const std::string& line) {
    const std::scoped_lock lock(mutex_);
    if (std::find(fallbacks_.begin(), fallbacks_.end(), line) == fallbacks_.end()) {
      fallbacks_.push_back(line);
    }
  }
  std::vector<std::string> fallbacks() const {
    const std::scoped_lock lock(mutex_);
    return fallbacks_;
  }

 protected:
  // Makes this the device that the calling thread's launches go to.
  virtual void make_current() const {}

 private:
  friend class DeviceGuard;
  mutable std::recursive_mutex mutex_;
  std::vector<std::string> fallbacks_;
  std::atomic<bool> deterministic_ = false;
};

// Held by whoever uses a device: it is this thread's current one, and no other thread's meanwhile.
class DeviceGuard {
 public:
  explicit DeviceGuard(const DeviceContext* device) {  // null: the CPU
    if (device == nullptr) return;
    lock_ = std::unique_lock(device->mutex_);
    device->make_current();
  }

 private:
  std::unique_lock<std::recursive_mutex> lock_;
};

}  // namespace halftone
