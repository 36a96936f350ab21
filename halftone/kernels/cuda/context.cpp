#include "halftone/kernels/cuda/context.h"

#include <future>

#include "halftone/base/text.h"
#include "halftone/kernels/cuda/backend.h"
#include "halftone/kernels/cuda/flush.h"

namespace halftone::cuda {
namespace {

class DeviceStorage final : public Storage {
 public:
  DeviceStorage(std::byte* data, size_t size, Device device, std::shared_ptr<HeldBytes> held)
      : Storage(data, size, /*mapped=*/false, device), held_(std::move(held)) {
    held_->add(static_cast<int64_t>(size));
  }
  ~DeviceStorage() override {
    cudaFree(data_);
    held_->now -= static_cast<int64_t>(size());
  }
  DeviceStorage(const DeviceStorage&) = delete;
  DeviceStorage& operator=(const DeviceStorage&) = delete;

 private:
  std::shared_ptr<HeldBytes> held_;
};

class PinnedStorage final : public Storage {
 public:
  PinnedStorage(std::byte* data, size_t size) : Storage(data, size, /*mapped=*/false) {}
  ~PinnedStorage() override { cudaFreeHost(data_); }
  PinnedStorage(const PinnedStorage&) = delete;
  PinnedStorage& operator=(const PinnedStorage&) = delete;
};

class EventPoint final : public LaunchPoint {
 public:
  EventPoint(int device, cudaStream_t stream) : device_(device) {
    HT_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync));
    HT_CUDA(cudaEventRecord(event_, stream));
  }
  ~EventPoint() override { cudaEventDestroy(event_); }
  EventPoint(const EventPoint&) = delete;
  EventPoint& operator=(const EventPoint&) = delete;

  void wait() override {
    HT_CUDA(cudaSetDevice(device_));  // of this thread, which would wake the first GPU otherwise
    HT_CUDA(cudaEventSynchronize(event_));
  }

 private:
  int device_;
  cudaEvent_t event_ = nullptr;
};

class StreamCopies final : public SideCopies {
 public:
  explicit StreamCopies(int device) : device_(device) {
    HT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~StreamCopies() override { cudaStreamDestroy(stream_); }
  StreamCopies(const StreamCopies&) = delete;
  StreamCopies& operator=(const StreamCopies&) = delete;

  void download(std::span<std::byte> to, const std::byte* from) override {
    copy(to.data(), from, to.size(), cudaMemcpyDeviceToHost);
  }
  void upload(std::byte* to, std::span<const std::byte> from) override {
    copy(to, from.data(), from.size(), cudaMemcpyHostToDevice);
  }

 private:
  void copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    HT_CUDA(cudaSetDevice(device_));  // of this thread
    HT_CUDA(cudaMemcpyAsync(to, from, bytes, kind, stream_));
    HT_CUDA(cudaStreamSynchronize(stream_));
  }

  int device_;
  cudaStream_t stream_ = nullptr;
};

class GraphRecording final : public Recording {
 public:
  GraphRecording(cudaGraph_t graph, cudaStream_t stream) : stream_(stream) {
    const cudaError_t status = cudaGraphInstantiate(&instance_, graph, 0);
    cudaGraphDestroy(graph);
    HT_CUDA(status);
  }
  ~GraphRecording() override { cudaGraphExecDestroy(instance_); }
  GraphRecording(const GraphRecording&) = delete;
  GraphRecording& operator=(const GraphRecording&) = delete;

  void replay() override { HT_CUDA(cudaGraphLaunch(instance_, stream_)); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t instance_ = nullptr;
};

}  // namespace

Context::Context(int index) : index_(index) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    throw Error(ErrorCode::kUnsupported, "--device cuda", "there is no usable NVIDIA GPU here");
  }
  if (index >= count) {
    throw Error(ErrorCode::kUsage, fmt::format("--device cuda:{}", index),
                "there is no such GPU; the last one is cuda:{}", count - 1);
  }
  // Opening the libraries and waking the GPU take as long as each other.
  std::future<void> libraries = std::async(std::launch::async, [] { cudnn(); });
  HT_CUDA(cudaSetDevice(index));
  HT_CUDA(cudaGetDeviceProperties(&properties_, index));
  HT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  for (cudaEvent_t& event : marks_) HT_CUDA(cudaEventCreate(&event));
  HT_CUDA(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking));
  HT_CUDA(cudaEventCreateWithFlags(&launched_, cudaEventDisableTiming));
  libraries.get();
}

Context::~Context() {
  cudaSetDevice(index_);
  cudaStreamSynchronize(copies_);
  cudaStreamSynchronize(stream_);
  parts_.clear();
  for (const cudaEvent_t event : copied_) cudaEventDestroy(event);
  cudaEventDestroy(launched_);
  cudaStreamDestroy(copies_);
  for (const cudaEvent_t event : marks_) cudaEventDestroy(event);
  cudaStreamDestroy(stream_);
}

DeviceMemoryInfo Context::memory() const {
  const DeviceGuard guard(this);
  size_t free = 0, total = 0;
  HT_CUDA(cudaMemGetInfo(&free, &total));
  return {static_cast<int64_t>(free), static_cast<int64_t>(total), held_->now, held_->most};
}

std::shared_ptr<Storage> Context::allocate(int64_t bytes, const std::string& purpose) {
  const DeviceGuard guard(this);
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it is told here and not again
    const DeviceMemoryInfo have = memory();
    throw Error(ErrorCode::kOutOfMemory, device().str(),
                "{} need {}, and {} of {} are free: choose a smaller size, batch or precision",
                purpose, human_bytes(bytes), human_bytes(have.free), human_bytes(have.total));
  }
  HT_CUDA(status);
  return std::make_shared<DeviceStorage>(static_cast<std::byte*>(data), static_cast<size_t>(bytes),
                                         device(), held_);
}

void Context::upload(std::byte* to, std::span<const std::byte> from) {
  if (from.empty()) return;
  const DeviceGuard guard(this);
  // From pageable memory the call returns when the bytes were read.
  HT_CUDA(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, stream_));
}

void Context::download(std::span<std::byte> to, const std::byte* from) {
  if (to.empty()) return;
  const DeviceGuard guard(this);
  HT_CUDA(cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, stream_));
  synchronize();
}

void Context::copy(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes == 0) return;
  const DeviceGuard guard(this);
  HT_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream_));
}

std::shared_ptr<Storage> Context::allocate_pinned(int64_t bytes, const std::string& purpose) {
  const DeviceGuard guard(this);
  void* data = nullptr;
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  const cudaError_t status = cudaHostAlloc(&data, size, cudaHostAllocDefault);
  if (status == cudaSuccess) {
    return std::make_shared<PinnedStorage>(static_cast<std::byte*>(data),
                                           static_cast<size_t>(bytes));
  }
  cudaGetLastError();  // it is told here and not again
  auto pageable = Storage::allocate(bytes);
  has_pageable_ = true;
  note_fallback(fmt::format("{} for {} are not pinned, and copied while launches wait: {}",
                            human_bytes(bytes), purpose, cudaGetErrorString(status)));
  return pageable;
}

// One stream waits for the other through events, which a recording turns into branches of its
// graph.
int Context::prefetch(std::byte* to, std::span<const std::byte> from) {
  const DeviceGuard guard(this);
  if (recording_ && has_pageable_) {
    throw Error(ErrorCode::kUnsupported, device().str(),
                "copies from memory that is not pinned are not recorded");
  }
  size_t copy = 0;
  while (copy < awaited_.size() && !awaited_[copy]) ++copy;
  if (copy == awaited_.size()) {
    cudaEvent_t event = nullptr;
    HT_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    copied_.push_back(event);
    awaited_.push_back(true);
  }
  HT_CUDA(cudaEventRecord(launched_, stream_));
  HT_CUDA(cudaStreamWaitEvent(copies_, launched_, 0));
  HT_CUDA(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, copies_));
  HT_CUDA(cudaEventRecord(copied_[copy], copies_));
  awaited_[copy] = false;
  return static_cast<int>(copy);
}

void Context::await(int copy) {
  const DeviceGuard guard(this);
  const auto index = static_cast<size_t>(copy);
  HT_ASSERT(index < awaited_.size() && !awaited_[index]);
  awaited_[index] = true;
  HT_CUDA(cudaStreamWaitEvent(stream_, copied_[index], 0));
}

std::unique_ptr<LaunchPoint> Context::point() {
  const DeviceGuard guard(this);
  HT_ASSERT(!recording_);
  return std::make_unique<EventPoint>(index_, stream_);
}

std::unique_ptr<SideCopies> Context::side_copies() {
  const DeviceGuard guard(this);
  return std::make_unique<StreamCopies>(index_);
}

std::string Context::identity() const {
  std::string text;
  for (const char byte : properties_.uuid.bytes) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

void Context::synchronize() {
  const DeviceGuard guard(this);
  HT_CUDA(cudaStreamSynchronize(stream_));
}

std::unique_ptr<Recording> Context::record(const std::function<void()>& launches) {
  const DeviceGuard guard(this);
  flush_ = nullptr;  // what is recorded has its algorithms
  HT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  recording_ = true;
  cudaGraph_t graph = nullptr;
  try {
    launches();
  } catch (...) {
    recording_ = false;
    cudaStreamEndCapture(stream_, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  recording_ = false;
  HT_CUDA(cudaStreamEndCapture(stream_, &graph));
  return std::make_unique<GraphRecording>(graph, stream_);
}

double Context::copy_bandwidth() {
  const DeviceGuard guard(this);
  constexpr size_t kBytes = size_t{1} << 30;
  const auto from = allocate(kBytes, "a copy"), to = allocate(kBytes, "a copy");
  HT_CUDA(cudaMemsetAsync(from->address(), 0x5A, kBytes, stream_));
  double best = 0;
  mark();
  for (int i = 0; i < 8; ++i) {
    HT_CUDA(
        cudaMemcpyAsync(to->address(), from->address(), kBytes, cudaMemcpyDeviceToDevice, stream_));
    const double seconds = mark();
    if (i > 0) best = std::max(best, 2 * static_cast<double>(kBytes) / seconds);
  }
  return best;
}

double Context::time(const std::function<void()>& launches) {
  const DeviceGuard guard(this);
  // Several times any cache, and it takes longer than a launch.
  constexpr size_t kBytes = size_t{256} << 20;
  if (!flush_) {
    flush_ = allocate(kBytes, "timing");
    HT_CUDA(cudaMemsetAsync(flush_->address(), 0, kBytes, stream_));
  }
  read_everything(flush_->address(), kBytes, stream_);
  HT_CUDA(cudaEventRecord(marks_[0], stream_));
  launches();
  HT_CUDA(cudaEventRecord(marks_[1], stream_));
  HT_CUDA(cudaEventSynchronize(marks_[1]));
  float milliseconds = 0;
  HT_CUDA(cudaEventElapsedTime(&milliseconds, marks_[0], marks_[1]));
  return milliseconds * 1e-3;
}

double Context::mark() {
  const DeviceGuard guard(this);
  HT_CUDA(cudaEventRecord(marks_[1], stream_));
  HT_CUDA(cudaEventSynchronize(marks_[1]));
  float milliseconds = 0;
  if (marked_) HT_CUDA(cudaEventElapsedTime(&milliseconds, marks_[0], marks_[1]));
  std::swap(marks_[0], marks_[1]);
  marked_ = true;
  return milliseconds * 1e-3;
}

}  // namespace halftone::cuda

namespace halftone {

bool has_cuda() { return true; }

std::unique_ptr<DeviceContext> make_cuda_context(int index) {
  return std::make_unique<cuda::Context>(index);
}

const Kernels& cuda_kernels() {
  static const Kernels kTable = [] {
    Kernels table;
    table.name = "cuda";
    cuda::fill_elementwise(table);
    cuda::fill_norms(table);
    cuda::fill_tokens(table);
    cuda::fill_quantize(table);
    cuda::fill_products(table);
    cuda::fill_linear_grad(table);
    cuda::fill_convolution(table);
    cuda::fill_attention(table);
    cuda::fill_fused(table);
    return table;
  }();
  return kTable;
}

}  // namespace halftone
