#include "halftone/runtime/side_sums.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "halftone/base/error.h"
#include "halftone/kernels/cuda/backend.h"
#include "halftone/kernels/device_group.h"
#include "halftone/runtime/this_machine.h"

namespace halftone {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One thread makes the sums, in order; those of a device's memory pass through the CPU's.
class ThreadSums final : public SideSums {
 public:
  ThreadSums(Collective& processes, DeviceContext* device, int64_t most,
             const Collective::Stop& stop, SumRoad road)
      : processes_(processes), device_(device), stop_(stop) {
    road_ = std::move(road);
    if (device != nullptr) {
      copies_ = device->side_copies();
      staging_ = device->allocate_pinned(most * static_cast<int64_t>(sizeof(float)),
                                         "gradients on their way to other processes");
    }
    thread_ = std::thread([this] { work(); });
  }
  ~ThreadSums() override {
    abandon();
    {
      const std::scoped_lock lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  ThreadSums(const ThreadSums&) = delete;
  ThreadSums& operator=(const ThreadSums&) = delete;

  void begin(float* values, int64_t count) override {
    Job job{values, count, device_ != nullptr ? device_->point() : nullptr};
    {
      const std::scoped_lock lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    changed_.notify_all();
  }

  SumSeconds finish() override {
    const auto start = Clock::now();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return (jobs_.empty() && !busy_) || failure_; });
    if (failure_) std::rethrow_exception(failure_);
    const SumSeconds seconds{summing_, since(start)};
    summing_ = 0;
    return seconds;
  }

  void abandon() noexcept override {
    std::unique_lock lock(mutex_);
    if (jobs_.empty() && !busy_) return;
    abandoned_ = true;
    jobs_.clear();
    changed_.wait(lock, [&] { return !busy_; });
  }

 private:
  struct Job {
    float* values = nullptr;
    int64_t count = 0;
    std::unique_ptr<LaunchPoint> point;  // behind what gives the values
  };

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ended_ || (!jobs_.empty() && !failure_ && !abandoned_); });
      if (ended_) return;
      const Job job = std::move(jobs_.front());
      jobs_.pop_front();
      busy_ = true;
      lock.unlock();
      std::exception_ptr failure;
      double seconds = 0;
      try {
        seconds = sum(job);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      busy_ = false;
      summing_ += seconds;
      if (failure) failure_ = failure;
      changed_.notify_all();
    }
  }

  double sum(const Job& job) {
    const auto stop = [this] { return abandoned_ || (stop_ && stop_()); };
    const auto count = static_cast<size_t>(job.count);
    if (device_ == nullptr) {
      const auto start = Clock::now();
      processes_.sum(std::span(job.values, count), stop);
      return since(start);
    }
    job.point->wait();
    const auto start = Clock::now();
    const auto host = staging_->mutable_bytes().first(count * sizeof(float));
    auto* const there = reinterpret_cast<std::byte*>(job.values);
    copies_->download(host, there);
    processes_.sum(std::span(reinterpret_cast<float*>(host.data()), count), stop);
    copies_->upload(there, host);
    return since(start);
  }

  Collective& processes_;
  DeviceContext* device_;
  Collective::Stop stop_;
  std::unique_ptr<SideCopies> copies_;
  std::shared_ptr<Storage> staging_;  // of the sum that is being made
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool busy_ = false, ended_ = false;
  std::atomic<bool> abandoned_ = false;
  std::exception_ptr failure_;
  double summing_ = 0;
  std::thread thread_;
};

class GroupSums final : public SideSums {
 public:
  GroupSums(std::unique_ptr<DeviceGroup> group, const Collective::Stop& stop, SumRoad road)
      : group_(std::move(group)), stop_(stop) {
    road_ = std::move(road);
  }
  void begin(float* values, int64_t count) override { group_->begin_sum(values, count); }
  SumSeconds finish() override {
    const auto start = Clock::now();
    group_->finish(stop_);
    return {group_->seconds(), since(start)};
  }
  void abandon() noexcept override { group_->abandon(); }

 private:
  std::unique_ptr<DeviceGroup> group_;
  Collective::Stop stop_;
};

std::vector<SumPlace> gather_places(Collective& processes, const Stream& stream,
                                    const Collective::Stop& stop) {
  SumPlace own{this_machine(), "", ""};
  if (stream.device != nullptr) {
    own.device = stream.device->identity();
    own.no_nccl = why_no_device_group(*stream.device);
  }
  constexpr char kBetween = '\n';
  std::vector<SumPlace> places;
  for (const std::string& told :
       processes.gather(own.machine + kBetween + own.device + kBetween + own.no_nccl, stop)) {
    const size_t first = told.find(kBetween), second = told.find(kBetween, first + 1);
    places.push_back({told.substr(0, first), told.substr(first + 1, second - first - 1),
                      told.substr(second + 1)});
  }
  return places;
}

// Null where one of the processes could not join, which road then says.
std::unique_ptr<DeviceGroup> join_all(Collective& processes, DeviceContext& device,
                                      const Collective::Stop& stop, SumRoad& road) {
  const int rank = processes.rank(), size = processes.size();
  std::unique_ptr<DeviceGroup> group;
  std::string why;
  try {
    const std::string own = processes.is_first() ? new_group_key(device) : std::string();
    const std::string key = processes.gather(own, stop)[0];
    group = join_device_group(device, {key, rank, size}, stop);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCancelled) throw;
    why = error.what();
  }
  const std::vector<std::string> told = processes.gather(why, stop);
  for (size_t r = 0; r < told.size(); ++r) {
    if (told[r].empty()) continue;
    road = {false, fmt::format("process {} of {}: {}", r + 1, size, told[r])};
    return nullptr;
  }
  return group;
}

}  // namespace

SumRoad choose_sum_road(const std::vector<SumPlace>& places) {
  const auto on_cpu = [](const SumPlace& place) { return place.device.empty(); };
  if (std::ranges::all_of(places, on_cpu)) return {false, "processes compute on the CPU"};
  std::map<std::pair<std::string, std::string>, size_t> found;
  for (size_t r = 0; r < places.size(); ++r) {
    const SumPlace& place = places[r];
    if (on_cpu(place)) {
      return {false, fmt::format("process {} of {} computes on the CPU", r + 1, places.size())};
    }
    const auto [other, is_new] = found.try_emplace({place.machine, place.device}, r);
    if (!is_new) {
      return {false, fmt::format("processes {} and {} share a GPU, which NCCL does not do",
                                 other->second + 1, r + 1)};
    }
  }
  for (size_t r = 0; r < places.size(); ++r) {
    if (places[r].no_nccl.empty()) continue;
    return {false, fmt::format("process {} of {}: {}", r + 1, places.size(), places[r].no_nccl)};
  }
  return {true, "each process has a GPU of its own"};
}

std::unique_ptr<SideSums> make_side_sums(Collective& processes, const Stream& stream, int64_t most,
                                         const Collective::Stop& stop) {
  SumRoad road = choose_sum_road(gather_places(processes, stream, stop));
  if (road.nccl) {
    auto group = join_all(processes, *stream.device, stop, road);
    if (group != nullptr) return std::make_unique<GroupSums>(std::move(group), stop, road);
  }
  return std::make_unique<ThreadSums>(processes, stream.device, most, stop, road);
}

}  // namespace halftone
