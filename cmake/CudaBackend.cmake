# The CUDA backend inside halftone_kernels: own kernels, cuBLASLt, cuDNN, and NVRTC for kernels that
# are generated while the program runs.
find_library(CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR})
if(NOT CUDNN_LIBRARY)
  message(FATAL_ERROR "cuDNN 9 was not found beside CUDA; install it, or build for the CPU: "
                      "make CUDA=0, cmake --preset release")
endif()

# NCCL, for several GPUs that train together, where its header is. It is opened when it is needed.
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${CUDAToolkit_LIBRARY_DIR})
if(NCCL_INCLUDE_DIR)
  get_filename_component(nccl_folder "${NCCL_LIBRARY}" DIRECTORY)
  set_source_files_properties(${CMAKE_SOURCE_DIR}/halftone/kernels/cuda/nccl.cpp PROPERTIES
    SKIP_UNITY_BUILD_INCLUSION ON INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR}
    COMPILE_DEFINITIONS "HALFTONE_NCCL;HALFTONE_NCCL_LIBRARIES=\"${nccl_folder}\"")
else()
  message(STATUS "NCCL: none (nccl.h not found), gradients of several GPUs pass through the CPU's "
                 "memory")
endif()

# Headers that generated kernels include travel inside the program.
set(embedded base/host_device.h numerics/bf16.h numerics/gelu.h numerics/minifloat.h
    numerics/scale_rules.h numerics/swizzle_offset.h kernels/cuda/pair_codecs.cuh
    kernels/cuda/fused_params.h kernels/cuda/fused_prelude.cuh)
set(embedded_entries "")
foreach(header ${embedded})
  file(READ ${CMAKE_SOURCE_DIR}/halftone/${header} text)
  string(APPEND embedded_entries "    {\"halftone/${header}\", R\"HALFTONE(${text})HALFTONE\"},\n")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
               ${CMAKE_SOURCE_DIR}/halftone/${header})
endforeach()
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/embedded_headers.cpp @ONLY CONTENT
"// Written by cmake/CudaBackend.cmake.
#include \"halftone/kernels/cuda/jit.h\"
namespace halftone::cuda {
namespace {
constexpr EmbeddedHeader kHeaders[] = {
@embedded_entries@};
}
std::span<const EmbeddedHeader> embedded_headers() { return kHeaders; }
}
")

file(GLOB cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/halftone/kernels/cuda/*.cpp
     ${CMAKE_SOURCE_DIR}/halftone/kernels/cuda/*.cu)
target_sources(halftone_kernels PRIVATE ${cuda_sources}
  ${CMAKE_BINARY_DIR}/generated/embedded_headers.cpp)
# Kernels of different files have constants of the same names; newer CMake would put them together.
set(kernel_sources ${cuda_sources})
list(FILTER kernel_sources INCLUDE REGEX "\\.cu$")
set_source_files_properties(${kernel_sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
target_include_directories(halftone_kernels SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
# The other libraries are opened when a GPU is used: here, unless the system knows a place itself.
get_filename_component(cudnn_folder ${CUDNN_LIBRARY} DIRECTORY)
target_link_libraries(halftone_kernels PRIVATE CUDA::cudart_static ${CMAKE_DL_LIBS})
set_source_files_properties(${CMAKE_SOURCE_DIR}/halftone/kernels/cuda/libraries.cpp PROPERTIES
  COMPILE_DEFINITIONS "HALFTONE_CUDA_LIBRARIES=\"${CUDAToolkit_LIBRARY_DIR}\";HALFTONE_CUDNN_LIBRARIES=\"${cudnn_folder}\"")
# fmt 9 leaves constexpr out under nvcc unless told.
target_compile_options(halftone_kernels PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false -DFMT_USE_CONSTEXPR=1>)
