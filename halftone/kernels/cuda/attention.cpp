// Attention: cuDNN's fused kernels where they take the problem, plain ones elsewhere.
#include "halftone/kernels/cuda/attention_plain.h"
#include "halftone/kernels/cuda/attention_products.h"
#include "halftone/kernels/cuda/cudnn_attention.h"

namespace halftone::cuda {
namespace {

template <class Args>
std::optional<int64_t> cudnn_workspace(const Args& args, const Stream& stream) {
  if (!cudnn_takes(args)) return std::nullopt;
  return context_of(stream).part<AttentionPlans>().workspace(args);
}

bool numbers(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }
bool numbers(const ConstView& x) { return x.format == nullptr && numbers(x.dtype); }

// Wider heads than the plain kernels hold; all of one dtype, as tensor cores want it.
constexpr int64_t kWidestPlainHead = 256;
template <class Args>
bool is_wide(const Args& a) {
  return a.q.shape[3] > kWidestPlainHead;
}

// Products with a softmax between them take none.
template <class Args>
bool takes_bias(const Args& a) {
  return a.bias.data == nullptr || (numbers(a.bias) && !is_wide(a));
}

bool supports_attention(const AttentionArgs& a) {
  return numbers(a.q) && numbers(a.k) && numbers(a.v) && numbers(a.y.dtype) && takes_bias(a);
}

bool supports_attention_grad(const AttentionGradArgs& a) {
  return numbers(a.dy) && numbers(a.q) && numbers(a.k) && numbers(a.v) && numbers(a.dq.dtype) &&
         numbers(a.dk.dtype) && numbers(a.dv.dtype) && takes_bias(a) &&
         (a.dbias.data == nullptr || numbers(a.dbias.dtype));
}

int64_t attention_workspace(const AttentionArgs& args, const Stream& stream) {
  if (is_wide(args)) return product_attention_workspace(args);
  const auto bytes = cudnn_workspace(args, stream);
  return bytes ? *bytes : plain_attention_workspace(args);
}

void attention(const AttentionArgs& args, Stream stream) {
  if (args.y.shape.numel() == 0) return;
  if (is_wide(args)) return product_attention(args, stream);
  if (cudnn_workspace(args, stream)) {
    context_of(stream).part<AttentionPlans>().run(args, stream);
  } else {
    plain_attention(args, stream);
  }
}

int64_t attention_grad_workspace(const AttentionGradArgs& args, const Stream& stream) {
  if (is_wide(args)) return product_attention_grad_workspace(args);
  const auto bytes = cudnn_workspace(args, stream);
  return bytes ? *bytes : plain_attention_grad_workspace(args);
}

void attention_grad(const AttentionGradArgs& args, Stream stream) {
  if (is_wide(args)) return product_attention_grad(args, stream);
  if (cudnn_workspace(args, stream)) {
    context_of(stream).part<AttentionPlans>().run(args, stream);
  } else {
    plain_attention_grad(args, stream);
  }
}

template <class Args>
void prepare(const Args& args, const Stream& stream, PreparationList& work) {
  if (cudnn_takes(args)) context_of(stream).part<AttentionPlans>().prepare(args, work);
}

}  // namespace

void fill_attention(Kernels& table) {
  table.strided_attention = true;
  table.attention_statistics = true;
  table.attention = KernelEntry<AttentionArgs>{supports_attention, attention, attention_workspace,
                                               false, prepare<AttentionArgs>};
  table.attention_grad =
      KernelEntry<AttentionGradArgs>{supports_attention_grad, attention_grad,
                                     attention_grad_workspace, false, prepare<AttentionGradArgs>};
}

}  // namespace halftone::cuda
