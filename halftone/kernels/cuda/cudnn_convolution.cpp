#include "halftone/kernels/cuda/cudnn_convolution.h"

#include "halftone/kernels/cuda/convolution_kernels.h"
#include "halftone/kernels/workspace.h"

namespace halftone::cuda {
namespace {

enum ConvolutionId : int64_t { kX = 1, kWeight, kBias, kY };

// Large images are convolved one by one: that fills the GPU, keeps the workspace small, and an
// image's bits do not depend on its batch.
constexpr int64_t kLargePlane = 64 * 64;
constexpr int64_t kMostWorkspace = int64_t{1} << 30;

int64_t padded(int64_t channels) { return (channels + 7) / 8 * 8; }

ConvProblem problem_of(const ConvArgs& a) {
  ConvProblem p;
  p.bf16 = a.x.dtype == DType::kBF16;
  p.bias = a.bias.data != nullptr;
  p.in = p.bf16 ? padded(a.x.shape[1]) : a.x.shape[1];
  p.height = a.x.shape[2];
  p.width = a.x.shape[3];
  p.out = p.bf16 ? padded(a.y.shape[1]) : a.y.shape[1];
  p.out_height = a.y.shape[2];
  p.out_width = a.y.shape[3];
  p.kh = a.weight.shape[2];
  p.kw = a.weight.shape[3];
  p.stride = a.how.stride;
  p.top = a.how.pad[0];
  p.left = a.how.pad[1];
  p.bottom = a.how.pad[2];
  p.right = a.how.pad[3];
  // cuDNN is told that arrays start at multiples of 16 bytes; copies always do.
  const bool aligned =
      p.bf16 || (p.in * p.height * p.width % 4 == 0 && p.out * p.out_height * p.out_width % 4 == 0);
  p.items = aligned && p.out_height * p.out_width >= kLargePlane ? 1 : a.x.shape[0];
  return p;
}

std::string str(const ConvProblem& p) {
  return fmt::format(
      "{} conv2d of [{}, {}, {}, {}] by [{}, {}, {}, {}], stride {}, pad {} {} {} {}",
      p.bf16 ? "BF16" : "F32", p.items, p.in, p.height, p.width, p.out, p.in, p.kh, p.kw, p.stride,
      p.top, p.left, p.bottom, p.right);
}

int64_t x_elements(const ConvProblem& p) { return p.items * p.in * p.height * p.width; }
int64_t y_elements(const ConvProblem& p) { return p.items * p.out * p.out_height * p.out_width; }
int64_t weight_elements(const ConvProblem& p) { return p.out * p.in * p.kh * p.kw; }

Dims channels_last(const Dims& d) { return {d[1] * d[2] * d[3], 1, d[3] * d[1], d[1]}; }

Plan make_plan(const ConvProblem& p, bool adds_bias, const Cudnn& cudnn) {
  const auto dtype = p.bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
  GraphBuilder g;
  const auto real = [&](ConvolutionId id, const Dims& dims) {
    return g.real(id, dtype, dims, p.bf16 ? channels_last(dims) : packed_strides(dims));
  };
  const Dims y_dims{p.items, p.out, p.out_height, p.out_width};
  const Operand x = real(kX, {p.items, p.in, p.height, p.width});
  const Operand weight = real(kWeight, {p.out, p.in, p.kh, p.kw});
  const Operand y = real(kY, y_dims);
  const GraphBuilder::Convolution how{{p.stride, p.stride}, {p.top, p.left}, {p.bottom, p.right}};
  if (adds_bias) {  // to sums in float, which are rounded once
    const Dims bias_dims{1, p.out, 1, 1};
    const Operand sums = g.temporary(CUDNN_DATA_FLOAT, y_dims, channels_last(y_dims));
    g.convolution(how, x, weight, sums);
    const Operand bias = g.real(kBias, CUDNN_DATA_FLOAT, bias_dims, channels_last(bias_dims));
    g.combine_into(CUDNN_POINTWISE_ADD, sums, bias, y);
  } else {
    g.convolution(how, x, weight, y);
  }
  GraphBuilder::Choice choice;
  choice.fallback = true;
  choice.most_workspace = kMostWorkspace;
  choice.forbidden = {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC,
                      CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
                      CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, CUDNN_NUMERICAL_NOTE_FFT,
                      CUDNN_NUMERICAL_NOTE_WINOGRAD};
  if (!p.bf16) choice.forbidden.push_back(CUDNN_NUMERICAL_NOTE_TENSOR_CORE);  // that is TF32
  return g.build(cudnn, choice);
}

MakePlan maker(const ConvProblem& p, bool adds_bias) {
  return [=](const Cudnn& cudnn) { return make_plan(p, adds_bias, cudnn); };
}

std::string key_of(const ConvProblem& p, bool adds_bias) {
  return fmt::format("{} into [{}, {}]{}", str(p), p.out_height, p.out_width,
                     adds_bias ? ", bias" : "");
}

bool is_floats_in_order(const ConstView& weight) {
  return weight.dtype == DType::kF32 && !weight.channels_last;
}

ConstView item_of(const ConstView& x, int64_t first, int64_t items) {
  ConstView view = x;
  view.shape = {items, x.shape[1], x.shape[2], x.shape[3]};
  view.data = static_cast<const std::byte*>(x.data) +
              first * x.shape[1] * x.shape[2] * x.shape[3] * (bits_of(x.dtype) / 8);
  return view;
}

void* item_of(const View& y, int64_t first) {
  return static_cast<std::byte*>(y.data) +
         first * y.shape[1] * y.shape[2] * y.shape[3] * (bits_of(y.dtype) / 8);
}

}  // namespace

bool cudnn_takes(const ConvArgs& a) {
  return !a.how.channels_last && (a.x.dtype == DType::kBF16 || a.x.dtype == DType::kF32) &&
         a.x.dtype == a.y.dtype && a.x.shape.numel() > 0 && a.y.shape.numel() > 0 &&
         a.weight.shape.numel() > 0 && a.shift.data == nullptr && a.addend.data == nullptr;
}

ConvolutionPlans::Entry ConvolutionPlans::make(const ConvProblem& p) {
  Entry made;
  try {
    auto& plans = context_.part<PlanTexts>();
    if (p.bf16 && p.bias) {
      try {
        made.plan = plans.get(key_of(p, true), maker(p, true));
        made.adds_bias = true;
        return made;
      } catch (const Error&) {  // then afterwards, to what was rounded already
      }
    }
    made.plan = plans.get(key_of(p, false), maker(p, false));
  } catch (const Error& error) {
    made.refusal = fmt::format("{}: {}", str(p), error.what());
    context_.note_fallback("plain convolution instead of cuDNN's: " + made.refusal);
  }
  return made;
}

void ConvolutionPlans::prepare(const ConvArgs& args, PreparationList& work) {
  const ConvProblem p = problem_of(args);
  if (entries_.contains(p)) return;
  const bool adds_bias = p.bf16 && p.bias;
  context_.part<PlanTexts>().prepare(key_of(p, adds_bias), maker(p, adds_bias), work);
}

const ConvolutionPlans::Entry& ConvolutionPlans::entry(const ConvProblem& problem) {
  const auto found = entries_.find(problem);
  if (found != entries_.end()) return found->second;
  return entries_.emplace(problem, make(problem)).first->second;
}

std::vector<std::string> ConvolutionPlans::fallbacks() const {
  std::vector<std::string> reasons;
  for (const auto& [problem, made] : entries_) {
    if (!made.plan) reasons.push_back(made.refusal);
  }
  return reasons;
}

std::optional<int64_t> ConvolutionPlans::workspace(const ConvArgs& args) {
  const ConvProblem p = problem_of(args);
  const Entry& made = entry(p);
  if (!made.plan) return std::nullopt;
  const int64_t bytes = aligned_bytes(made.plan->workspace_bytes());
  if (!p.bf16) {
    return bytes + (is_floats_in_order(args.weight) ? 0 : aligned_bytes(weight_elements(p) * 4));
  }
  return bytes + aligned_bytes(x_elements(p) * 2) + aligned_bytes(y_elements(p) * 2) +
         aligned_bytes(weight_elements(p) * 2) + aligned_bytes(p.out * 4);
}

void ConvolutionPlans::run(const ConvArgs& args, const Stream& stream) {
  if (args.x.dtype == DType::kBF16) {
    run_bf16(args, stream);
  } else {
    run_f32(args, stream);
  }
}

// Tensor cores want channels last: x and y are transposed around the convolution.
void ConvolutionPlans::run_bf16(const ConvArgs& args, const Stream& stream) {
  const ConvProblem p = problem_of(args);
  const Entry& made = entry(p);
  const cudaStream_t on = context_.stream();
  Workspace from(stream);
  void* x = from.bytes(x_elements(p) * 2);
  void* y = from.bytes(y_elements(p) * 2);
  void* weight = from.bytes(weight_elements(p) * 2);
  float* bias = from.floats(p.out);
  void* workspace = from.bytes(made.plan->workspace_bytes());

  channels_last_weight(args.weight, {p.out, p.in, DType::kBF16}, weight, on);
  std::vector<PlanPointer> pointers{{kX, x}, {kWeight, weight}, {kY, y}};
  if (made.adds_bias) {
    padded_floats(args.bias, p.out, bias, on);
    pointers.push_back({kBias, bias});
  }
  const int64_t plane = p.height * p.width, out_plane = p.out_height * p.out_width;
  for (int64_t first = 0; first < args.x.shape[0]; first += p.items) {
    const ConstView item = item_of(args.x, first, p.items);
    transpose_bf16({item.data, x, p.items, args.x.shape[1], plane, plane, p.in}, on);
    made.plan->run(pointers, workspace);
    transpose_bf16(
        {y, item_of(args.y, first), p.items, out_plane, p.out, args.y.shape[1], out_plane}, on);
  }
  if (p.bias && !made.adds_bias) add_channel_bias(args.y, args.bias, on);
}

void ConvolutionPlans::run_f32(const ConvArgs& args, const Stream& stream) {
  const ConvProblem p = problem_of(args);
  const Plan& plan = *entry(p).plan;
  const cudaStream_t on = context_.stream();
  Workspace from(stream);
  void* workspace = from.bytes(plan.workspace_bytes());
  const void* weight = args.weight.data;
  if (!is_floats_in_order(args.weight)) {
    float* converted = from.floats(weight_elements(p));
    floats_in_order(args.weight, converted, on);
    weight = converted;
  }
  for (int64_t first = 0; first < args.x.shape[0]; first += p.items) {
    const PlanPointer pointers[] = {{kX, item_of(args.x, first, p.items).data},
                                    {kWeight, weight},
                                    {kY, item_of(args.y, first)}};
    plan.run(pointers, workspace);
  }
  if (p.bias) add_channel_bias(args.y, args.bias, on);
}

}  // namespace halftone::cuda
