// Compiles generated kernels while the program runs, and remembers them in files: a kernel that any
// run has made before is read, not compiled.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "halftone/kernels/cuda/context.h"

namespace halftone::cuda {

// Machine code of a source for a GPU of this capability, through NVRTC; needs no GPU. What does not
// compile is an Error with the compiler's log.
std::vector<char> compile(const std::string& source, int capability);

struct JitKernel {
  cudaKernel_t kernel = nullptr;
  int blocks_per_multiprocessor = 1;
};

class JitKernels {
 public:
  explicit JitKernels(Context& context) : context_(context) {}
  ~JitKernels();
  JitKernels(const JitKernels&) = delete;
  JitKernels& operator=(const JitKernels&) = delete;

  // The kernel of this name in a source, which has threads threads per block and so much dynamic
  // shared memory.
  const JitKernel& get(const std::string& source, const char* name, int threads,
                       int64_t shared_bytes);
  // Adds the work of compiling a source, for any thread, unless that has been done or added before.
  void prepare(const std::string& source, PreparationList& work);
  int compiled() const { return compiled_; }  // not found in files

 private:
  std::string find_code(const std::string& source);  // empty where it is not compiled
  std::string make_code(const std::string& source);

  Context& context_;
  std::map<std::string, JitKernel> kernels_;
  std::vector<cudaLibrary_t> libraries_;
  std::set<std::string> begun_;
  std::mutex mutex_;                         // of what follows
  std::map<std::string, std::string> code_;  // by source
  int compiled_ = 0;
};

// Files that sources may include, inside the program: name and text.
struct EmbeddedHeader {
  const char *name, *text;
};
std::span<const EmbeddedHeader> embedded_headers();

}  // namespace halftone::cuda
