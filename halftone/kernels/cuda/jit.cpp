#include "halftone/kernels/cuda/jit.h"

#include <array>

#include "halftone/base/cache_files.h"
#include "halftone/kernels/cuda/libraries.h"

namespace halftone::cuda {
namespace {

void check(nvrtcResult status, const char* call) {
  if (status == NVRTC_SUCCESS) return;
  throw Error(ErrorCode::kUnsupported, "NVRTC", "{} failed: {}", call,
              nvrtc().nvrtcGetErrorString(status));
}
#define HT_NVRTC(call) check((call), #call)

struct Program {
  nvrtcProgram program = nullptr;
  ~Program() { nvrtc().nvrtcDestroyProgram(&program); }
};

// NVRTC has no standard headers.
constexpr const char* kIntegers =
    "#pragma once\n"
    "typedef signed char int8_t; typedef unsigned char uint8_t;\n"
    "typedef short int16_t; typedef unsigned short uint16_t;\n"
    "typedef int int32_t; typedef unsigned int uint32_t;\n"
    "typedef long long int64_t; typedef unsigned long long uint64_t;\n";

std::string everything_that_counts(const std::string& source, int capability) {
  int major = 0, minor = 0;
  HT_NVRTC(nvrtc().nvrtcVersion(&major, &minor));
  std::string all = fmt::format("sm_{} nvrtc {}.{}\n", capability, major, minor) + source;
  for (const EmbeddedHeader& header : embedded_headers()) all += header.text;
  return all;
}

}  // namespace

std::vector<char> compile(const std::string& source, int capability) {
  std::vector<const char*> names = {"cstdint"}, texts = {kIntegers};
  for (const EmbeddedHeader& header : embedded_headers()) {
    names.push_back(header.name);
    texts.push_back(header.text);
  }
  Program p;
  HT_NVRTC(nvrtc().nvrtcCreateProgram(&p.program, source.c_str(), "fused_rows.cu",
                                      static_cast<int>(names.size()), texts.data(), names.data()));
  const std::string target = fmt::format("--gpu-architecture=sm_{}", capability);
  // No contraction, as everywhere: fused and unfused kernels round alike.
  const std::array<const char*, 3> options = {target.c_str(), "--std=c++20", "--fmad=false"};
  if (nvrtc().nvrtcCompileProgram(p.program, static_cast<int>(options.size()), options.data()) !=
      NVRTC_SUCCESS) {
    size_t size = 0;
    HT_NVRTC(nvrtc().nvrtcGetProgramLogSize(p.program, &size));
    std::string log(size, '\0');
    HT_NVRTC(nvrtc().nvrtcGetProgramLog(p.program, log.data()));
    throw Error(ErrorCode::kUnsupported, "generated kernel", "does not compile: {}", log);
  }
  size_t size = 0;
  HT_NVRTC(nvrtc().nvrtcGetCUBINSize(p.program, &size));
  std::vector<char> code(size);
  HT_NVRTC(nvrtc().nvrtcGetCUBIN(p.program, code.data()));
  return code;
}

JitKernels::~JitKernels() {
  for (const cudaLibrary_t library : libraries_) cudaLibraryUnload(library);
}

std::string JitKernels::find_code(const std::string& source) {
  const std::lock_guard lock(mutex_);
  if (const auto found = code_.find(source); found != code_.end()) return found->second;
  const std::string head = everything_that_counts(source, context_.capability());
  std::string code = read_cache_file(cache_file("kernel", head), head);
  if (!code.empty()) code_.emplace(source, code);
  return code;
}

std::string JitKernels::make_code(const std::string& source) {
  const std::vector<char> made = compile(source, context_.capability());
  const std::string code(made.begin(), made.end());
  const std::lock_guard lock(mutex_);
  ++compiled_;
  code_[source] = code;
  const std::string head = everything_that_counts(source, context_.capability());
  write_cache_file(cache_file("kernel", head), head, code);
  return code;
}

void JitKernels::prepare(const std::string& source, PreparationList& work) {
  if (kernels_.contains(source) || !find_code(source).empty()) return;
  if (begun_.insert(source).second) work.emplace_back([this, source] { make_code(source); });
}

const JitKernel& JitKernels::get(const std::string& source, const char* name, int threads,
                                 int64_t shared_bytes) {
  if (const auto found = kernels_.find(source); found != kernels_.end()) return found->second;
  // Loading is no work of the stream's, so it may happen while launches are recorded.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  HT_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
  std::string code = find_code(source);
  if (code.empty()) code = make_code(source);
  cudaLibrary_t library = nullptr;
  HT_CUDA(cudaLibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  libraries_.push_back(library);
  JitKernel made;
  HT_CUDA(cudaLibraryGetKernel(&made.kernel, library, name));
  const void* function = reinterpret_cast<const void*>(made.kernel);
  constexpr int64_t kAlwaysThere = 48 << 10;
  if (shared_bytes > kAlwaysThere) {
    HT_CUDA(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared_bytes)));
  }
  HT_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &made.blocks_per_multiprocessor, function, threads, static_cast<size_t>(shared_bytes)));
  HT_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
  {
    const std::lock_guard lock(mutex_);
    code_.erase(source);  // it is loaded
  }
  return kernels_.emplace(source, made).first->second;
}

}  // namespace halftone::cuda
