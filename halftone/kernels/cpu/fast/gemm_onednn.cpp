#include <dnnl.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/threads.h"
#include "halftone/kernels/cpu/fast/gemm.h"
#include "halftone/kernels/kernels.h"
#include "halftone/tensor/mapped_file.h"

namespace halftone {
namespace {

bool has_avx512() { return dnnl_get_effective_cpu_isa() >= dnnl_cpu_isa_avx512_core; }

}  // namespace

int64_t library_code_bytes() { return has_avx512() ? int64_t{11} << 19 : int64_t{5} << 19; }

}  // namespace halftone

namespace halftone::fast {

// Panels of either operand, as oneDNN cuts them: it sees the product from the other side.
int64_t packed_bytes(int64_t m, int64_t n, int64_t k) {
  const int64_t depth = std::min<int64_t>(k, has_avx512() ? 384 : 192);
  return (std::min<int64_t>(n, 9984) + std::min<int64_t>(m, 384)) * depth *
         static_cast<int64_t>(sizeof(float));
}

void onednn_gemm(const Gemm& g) {
  const ThreadLimit alone(1);
  prepare_thread_for_truncated_files();
  const dnnl_status_t status =
      dnnl_sgemm(g.transpose_a ? 'T' : 'N', g.transpose_b ? 'T' : 'N', g.m, g.n, g.k, g.alpha, g.a,
                 g.lda, g.b, g.ldb, g.beta, g.c, g.ldc);
  if (status == dnnl_success) return;
  throw Error(status == dnnl_out_of_memory ? ErrorCode::kOutOfMemory : ErrorCode::kUnsupported,
              "product", "oneDNN did not multiply [{}, {}] by [{}, {}]: status {}", g.m, g.k, g.k,
              g.n, static_cast<int>(status));
}

}  // namespace halftone::fast
