#include "halftone/kernels/cuda/libraries.h"

#include <cuda_runtime_api.h>
#include <cudnn_version.h>
#include <dlfcn.h>

#include <string>

#include "halftone/base/error.h"

namespace halftone::cuda {
namespace {

// The library of this name where the system looks for libraries, or else where the program was
// built against it. It stays open: CUDA's libraries do not like to be closed.
void* open(const std::string& name, const std::string& folder) {
  void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    library = ::dlopen((folder + "/" + name).c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    throw Error(ErrorCode::kUnsupported, name,
                "this library of CUDA could not be opened, so the GPU is not used ({})",
                ::dlerror());
  }
  return library;
}

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) {
    throw Error(ErrorCode::kUnsupported, name, "CUDA's library has no such function ({})",
                ::dlerror());
  }
}

}  // namespace

#define HT_FIND(name) find(library, #name, made.name);

const CublasLt& cublaslt() {
  static const CublasLt functions = [] {
    void* library =
        open("libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR), HALFTONE_CUDA_LIBRARIES);
    CublasLt made;
    HT_CUBLASLT_FUNCTIONS(HT_FIND)
    return made;
  }();
  return functions;
}

const Nvrtc& nvrtc() {
  static const Nvrtc functions = [] {
    void* library =
        open("libnvrtc.so." + std::to_string(CUDART_VERSION / 1000), HALFTONE_CUDA_LIBRARIES);
    Nvrtc made;
    HT_NVRTC_FUNCTIONS(HT_FIND)
    return made;
  }();
  return functions;
}

const CudnnLibrary& cudnn() {
  static const CudnnLibrary functions = [] {
    // cuDNN opens both by name, and finds them once they are there.
    cublaslt();
    nvrtc();
    void* library = open("libcudnn.so." + std::to_string(CUDNN_MAJOR), HALFTONE_CUDNN_LIBRARIES);
    CudnnLibrary made;
    HT_CUDNN_FUNCTIONS(HT_FIND)
    return made;
  }();
  return functions;
}

#undef HT_FIND

}  // namespace halftone::cuda
