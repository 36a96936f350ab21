#include <dnnl.h>

#include "halftone/base/error.h"
#include "halftone/base/threads.h"
#include "halftone/kernels/cpu/fast/gemm.h"
#include "halftone/tensor/mapped_file.h"

namespace halftone::fast {

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
