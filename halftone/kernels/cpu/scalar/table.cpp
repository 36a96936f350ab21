#include "halftone/kernels/cpu/linear_grad.h"
#include "halftone/kernels/cpu/scalar/reference.h"

namespace halftone {

const Kernels& cpu_scalar_kernels() {
  static const Kernels kTable = [] {
    Kernels table;
    table.name = "scalar";
    reference::fill_quantize(table);
    reference::fill_elementwise(table);
    reference::fill_products(table);
    reference::fill_norms(table);
    reference::fill_tokens(table);
    LinearInputGrad<cpu_scalar_kernels>::fill(table);
    return table;
  }();
  return kTable;
}

}  // namespace halftone
