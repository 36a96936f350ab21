// One GPU: its stream, what is known of it, and the parts (library handles, caches) that kernels
// keep there.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <map>
#include <memory>
#include <typeindex>
#include <vector>

#include "halftone/kernels/cuda/check.h"
#include "halftone/kernels/kernels.h"

namespace halftone::cuda {

// Bytes that a context's storages hold; they may outlive it.
struct HeldBytes {
  std::atomic<int64_t> now = 0, most = 0;

  void add(int64_t bytes) {
    const int64_t held = now += bytes;
    int64_t before = most;
    while (before < held && !most.compare_exchange_weak(before, held)) {
    }
  }
};

class Context final : public DeviceContext {
 public:
  explicit Context(int index);
  ~Context() override;
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Device device() const override { return {DeviceKind::kCuda, index_}; }
  DeviceMemoryInfo memory() const override;
  void forget_most_held() override { held_->most = held_->now.load(); }
  std::shared_ptr<Storage> allocate(int64_t bytes, const std::string& purpose) override;
  void upload(std::byte* to, std::span<const std::byte> from) override;
  void download(std::span<std::byte> to, const std::byte* from) override;
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override;
  std::shared_ptr<Storage> allocate_pinned(int64_t bytes, const std::string& purpose) override;
  int prefetch(std::byte* to, std::span<const std::byte> from) override;
  void await(int copy) override;
  std::unique_ptr<LaunchPoint> point() override;
  std::unique_ptr<SideCopies> side_copies() override;
  std::string identity() const override;
  void synchronize() override;
  std::unique_ptr<Recording> record(const std::function<void()>& launches) override;
  double mark() override;
  double time(const std::function<void()>& launches) override;
  double copy_bandwidth() override;
  void make_current() const override { HT_CUDA(cudaSetDevice(index_)); }

  cudaStream_t stream() const { return stream_; }
  const cudaDeviceProp& properties() const { return properties_; }
  bool multiplies_blocks() const override { return capability() >= 100; }
  bool channels_last() const override { return true; }
  int capability() const { return properties_.major * 10 + properties_.minor; }
  int multiprocessors() const { return properties_.multiProcessorCount; }
  bool recording() const { return recording_; }

  // The part of this type, made from the context when it is first asked for: a library's handle,
  // a cache of plans.
  template <class Part>
  Part& part() {
    auto& slot = parts_[std::type_index(typeid(Part))];
    if (!slot) slot = std::make_shared<Part>(*this);
    return *static_cast<Part*>(slot.get());
  }

 private:
  int index_;
  cudaDeviceProp properties_{};
  cudaStream_t stream_ = nullptr;
  cudaEvent_t marks_[2] = {};
  bool marked_ = false, recording_ = false;
  // Prefetches: their own stream, what was launched before one, and the ends of those that nobody
  // has waited for.
  cudaStream_t copies_ = nullptr;
  cudaEvent_t launched_ = nullptr;
  std::vector<cudaEvent_t> copied_;
  std::vector<bool> awaited_;
  bool has_pageable_ = false;  // memory that prefetches read could not be pinned
  std::shared_ptr<HeldBytes> held_ = std::make_shared<HeldBytes>();
  std::shared_ptr<Storage> flush_;  // read to empty the caches; there while algorithms are measured
  std::map<std::type_index, std::shared_ptr<void>> parts_;
};

inline Context& context_of(const Stream& stream) { return static_cast<Context&>(*stream.device); }

// Blocks of a grid that covers `count` items.
inline unsigned blocks_for(int64_t count, int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

void fill_elementwise(Kernels& table);
void fill_norms(Kernels& table);
void fill_tokens(Kernels& table);
void fill_quantize(Kernels& table);
void fill_products(Kernels& table);
void fill_linear_grad(Kernels& table);
void fill_convolution(Kernels& table);
void fill_attention(Kernels& table);
void fill_fused(Kernels& table);

}  // namespace halftone::cuda

// After a launch: what was wrong with it. (Faults while it runs show at the next synchronization.)
#define HT_CUDA_LAUNCHED() HT_CUDA(cudaGetLastError())
