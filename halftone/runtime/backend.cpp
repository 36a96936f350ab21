#include "halftone/runtime/backend.h"

#include <charconv>

#include "halftone/base/error.h"
#include "halftone/kernels/cuda/backend.h"
#include "halftone/runtime/devices.h"

namespace halftone {
namespace {

Backend on_cpu(std::string fallback) {
  return {cpu_device(), &cpu_kernels(), nullptr, std::move(fallback)};
}

size_t gpu_index(const std::string& asked, const GpuList& list) {
  const size_t colon = asked.find(':');
  if (colon == std::string::npos) return 0;
  size_t index = 0;
  const char *begin = asked.data() + colon + 1, *end = asked.data() + asked.size();
  const auto [stop, error] = std::from_chars(begin, end, index);
  if (error != std::errc() || stop != end) {
    throw Error(ErrorCode::kUsage, "device", "'{}' is no device; say cuda:0", asked);
  }
  if (!list.gpus.empty() && index >= list.gpus.size()) {
    throw Error(ErrorCode::kUsage, "device", "there is no {}; the last GPU is cuda:{}", asked,
                list.gpus.size() - 1);
  }
  return index;
}

}  // namespace

Backend choose_backend(const std::string& asked) {
  if (asked == "cpu") return on_cpu("");
  const bool automatic = asked == "auto";
  const GpuList list = has_cuda() || !automatic ? list_gpus() : GpuList{};
  const size_t index = automatic ? 0 : gpu_index(asked, list);
  if (!has_cuda()) {
    return on_cpu(automatic ? "" : "this build has no CUDA backend (cmake --preset cuda has it)");
  }
  if (list.gpus.empty()) return on_cpu(automatic ? "" : list.note);
  const DeviceInfo& gpu = list.gpus[index];
  if (const auto [support, why] = format_support(gpu, formats::fp32);
      support == Support::kUnavailable) {
    return on_cpu(automatic ? "" : fmt::format("{} {}", gpu.name, why));
  }
  try {
    return {gpu, &cuda_kernels(), make_cuda_context(gpu.device.index), ""};
  } catch (const Error& error) {
    // A library of CUDA that is not there, a GPU that another program keeps to itself.
    if (error.code() != ErrorCode::kUnsupported) throw;
    return on_cpu(fmt::format("{}: {}", gpu.name, error.what()));
  }
}

}  // namespace halftone
