#include "halftone/kernels/cpu/fast/rows.h"
#include "halftone/kernels/cpu/linear_grad.h"
#include "halftone/kernels/kernels.h"

#if defined(HALFTONE_HIGHWAY)
#include "halftone/kernels/cpu/simd_spans.h"
#endif

namespace halftone {

const Kernels& cpu_kernels() {
  static const Kernels kTable = [] {
    Kernels table = cpu_scalar_kernels();  // the baseline, overridden entry by entry
#if defined(HALFTONE_HIGHWAY)
    if (!simd::available()) return table;  // a CPU that is older than what the rest is compiled for
#endif
    table.name = "plain";
    fast::fill_adamw(table);
    fast::fill_elementwise(table);
    fast::fill_norms(table);
    fast::fill_norm_grads(table);
    fast::fill_sums(table);
    fast::fill_tokens(table);
    fast::fill_fused(table);
    fast::fill_products(table);
    fast::fill_convolution_products(table);
#if defined(HALFTONE_DNNL)
    fast::fill_convolution(table);
#endif
#if defined(HALFTONE_HIGHWAY)
    simd::fill_quantize(table);
#endif
    LinearInputGrad<cpu_kernels>::fill(table);
    return table;
  }();
  return kTable;
}

}  // namespace halftone
