#include "halftone/kernels/cuda/cudnn_channels_last.h"

#include "halftone/kernels/cuda/convolution_kernels.h"
#include "halftone/kernels/layouts.h"
#include "halftone/kernels/workspace.h"

namespace halftone::cuda {
namespace {

enum LastOperand : int64_t { kLastX = 1, kLastWeight, kLastBias, kLastAddend, kLastY };

constexpr int64_t kMostLastWorkspace = int64_t{1} << 30;

Dims last_strides(const Dims& d) { return {d[1] * d[2] * d[3], 1, d[3] * d[1], d[1]}; }

int64_t last_element_bytes(const LastProblem& p) { return p.bf16 ? 2 : 4; }
// cuDNN is told that arrays start at multiples of 16 bytes: so do items then.
int64_t padded_channels(const LastProblem& p, int64_t channels) {
  const int64_t of = 16 / last_element_bytes(p);
  return (channels + of - 1) / of * of;
}

LastProblem last_problem(ConvPass pass, DType dtype, const ConvAttributes& how,
                         const Shape& x_shape, const Shape& weight, const Shape& y_shape) {
  const PictureLayout x(x_shape, true), y(y_shape, true);
  LastProblem p;
  p.pass = pass;
  p.bf16 = dtype == DType::kBF16;
  p.items = x.batch;
  p.in = padded_channels(p, x.channels);
  p.height = x.height;
  p.width = x.width;
  p.out = padded_channels(p, y.channels);
  p.out_height = y.height;
  p.out_width = y.width;
  p.kh = weight[2];
  p.kw = weight[3];
  p.stride = how.stride;
  p.top = how.pad[0];
  p.left = how.pad[1];
  p.bottom = how.pad[2];
  p.right = how.pad[3];
  return p;
}

bool pads_result(const ConvArgs& a, const LastProblem& p) { return p.out != a.y.shape[3]; }

// Whether the bias is read where it lies: the same for every item, and as long as the result.
bool reads_bias(const ConvArgs& a, const LastProblem& p) {
  return a.shift.data == nullptr && !pads_result(a, p) &&
         (a.bias.dtype == DType::kF32 || a.bias.dtype == DType::kBF16);
}

LastProblem last_problem(const ConvArgs& a) {
  LastProblem p =
      last_problem(ConvPass::kForward, a.x.dtype, a.how, a.x.shape, a.weight.shape, a.y.shape);
  // One by one: a picture's bits do not depend on its batch.
  p.items = 1;
  if (!p.bf16) return p;  // what is added there follows in a pass of its own
  p.bias = a.bias.data != nullptr || a.shift.data != nullptr;
  p.narrow_bias = p.bias && reads_bias(a, p) && a.bias.dtype == DType::kBF16;
  p.adds = a.addend.data != nullptr && a.addend.dtype == a.y.dtype && !pads_result(a, p);
  return p;
}
LastProblem last_problem(const ConvInputGradArgs& a) {
  return last_problem(ConvPass::kInputGrad, a.dy.dtype, a.how, a.dx.shape, a.weight.shape,
                      a.dy.shape);
}
LastProblem last_problem(const ConvWeightGradArgs& a) {
  LastProblem p = last_problem(ConvPass::kWeightGrad, a.dy.dtype, a.how, a.x.shape, a.dweight.shape,
                               a.dy.shape);
  p.wide = true;
  return p;
}

int64_t last_weight_elements(const LastProblem& p) { return p.out * p.in * p.kh * p.kw; }

bool reads_weight(const ConstView& weight, const LastProblem& p) {
  const bool in_order = weight.channels_last || weight.shape[2] * weight.shape[3] == 1;
  return in_order && weight.dtype == (p.bf16 ? DType::kBF16 : DType::kF32) &&
         p.out == weight.shape[0] && p.in == weight.shape[1];
}

std::string last_key(const LastProblem& p) {
  constexpr const char* kPasses[] = {"", " input gradient", " weight gradient"};
  return fmt::format(
      "{} conv2d{} of [{}, {}, {}, {}] by [{}, {}, {}, {}], stride {}, pad {} {} {} {} into [{}, "
      "{}], channels last{}{}{}",
      p.bf16 ? "BF16" : "F32", kPasses[static_cast<size_t>(p.pass)], p.items, p.height, p.width,
      p.in, p.out, p.kh, p.kw, p.in, p.stride, p.top, p.left, p.bottom, p.right, p.out_height,
      p.out_width,
      !p.bias         ? ""
      : p.narrow_bias ? ", BF16 bias"
                      : ", bias",
      p.adds ? ", addend" : "", p.wide ? ", F32 result" : "");
}

Plan make_last_plan(const LastProblem& p, const Cudnn& cudnn) {
  const auto dtype = p.bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
  GraphBuilder g;
  const auto real = [&](LastOperand id, const Dims& dims, cudnnDataType_t of) {
    return g.real(id, of, dims, last_strides(dims));
  };
  const Dims y_dims{p.items, p.out, p.out_height, p.out_width};
  const Operand x = real(kLastX, {p.items, p.in, p.height, p.width}, dtype);
  const bool wide = p.pass == ConvPass::kWeightGrad && p.wide;
  const Operand weight =
      real(kLastWeight, {p.out, p.in, p.kh, p.kw}, wide ? CUDNN_DATA_FLOAT : dtype);
  const Operand y = real(kLastY, y_dims, dtype);
  const GraphBuilder::Convolution how{{p.stride, p.stride}, {p.top, p.left}, {p.bottom, p.right}};
  if (p.pass == ConvPass::kInputGrad) {
    g.convolution_input_grad(how, y, weight, x);
  } else if (p.pass == ConvPass::kWeightGrad) {
    g.convolution_weight_grad(how, y, x, weight);
  } else if (!p.bias && !p.adds) {
    g.convolution(how, x, weight, y);
  } else {
    const auto floats = [&] { return g.temporary(CUDNN_DATA_FLOAT, y_dims, last_strides(y_dims)); };
    Operand sums = floats();
    g.convolution(how, x, weight, sums);
    if (p.bias) {
      const auto of = p.narrow_bias ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
      const Operand bias = real(kLastBias, {1, p.out, 1, 1}, of);
      const Operand moved = p.adds ? floats() : y;
      g.combine_into(CUDNN_POINTWISE_ADD, sums, bias, moved);
      sums = moved;
    }
    if (p.adds) g.combine_into(CUDNN_POINTWISE_ADD, sums, real(kLastAddend, y_dims, dtype), y);
  }
  GraphBuilder::Choice choice;
  choice.fallback = true;
  choice.most_workspace = kMostLastWorkspace;
  choice.forbidden = {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC,
                      CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
                      CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, CUDNN_NUMERICAL_NOTE_FFT,
                      CUDNN_NUMERICAL_NOTE_WINOGRAD};
  if (!p.bf16) choice.forbidden.push_back(CUDNN_NUMERICAL_NOTE_TENSOR_CORE);  // that is TF32
  return g.build(cudnn, choice);
}

MakePlan last_maker(const LastProblem& p) {
  return [=](const Cudnn& cudnn) { return make_last_plan(p, cudnn); };
}

// The same problem with less in its plan, from the most to the least.
std::vector<LastProblem> ways_of(const LastProblem& wanted) {
  std::vector<LastProblem> ways{wanted};
  LastProblem p = wanted;
  if (p.narrow_bias) {
    p.narrow_bias = false;
    ways.push_back(p);
  }
  if (p.adds) {
    p.adds = false;
    ways.push_back(p);
  }
  if (p.bias) {
    p.bias = false;
    ways.push_back(p);
  }
  if (p.wide && p.bf16) {
    p.wide = false;
    ways.push_back(p);
  }
  return ways;
}

const void* item_at(const ConstView& x, int64_t b) {
  const int64_t elements = x.shape[1] * x.shape[2] * x.shape[3];
  return static_cast<const std::byte*>(x.data) + b * elements * (bits_of(x.dtype) / 8);
}
void* item_at(const View& y, int64_t b) {
  return const_cast<void*>(item_at(ConstView{y.data, y.dtype, y.shape}, b));
}

bool is_plain(const ConstView& x, DType dtype) { return x.dtype == dtype && x.shape.numel() > 0; }
bool computes_in(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF32; }

// All of an array with its channels padded; itself where it needs no padding.
class PaddedPicture {
 public:
  PaddedPicture(const Shape& shape, int64_t items, int64_t channels, int64_t element_bytes)
      : pixels_(items * shape[1] * shape[2]),
        own_(shape[3]),
        padded_(channels),
        element_bytes_(element_bytes) {}
  bool needed() const { return own_ != padded_; }
  int64_t bytes() const { return needed() ? pixels_ * padded_ * element_bytes_ : 0; }

  const void* fill(const void* x, void* memory, cudaStream_t on) const {
    if (!needed()) return x;
    pad_channels({x, memory, pixels_, own_, padded_, element_bytes_}, on);
    return memory;
  }

 private:
  int64_t pixels_, own_, padded_, element_bytes_;
};

// What a forward run needs besides its arguments.
struct ForwardScratch {
  PaddedPicture x, y;
  bool turns_weight, copies_bias;
  int64_t weight_bytes, bias_floats;

  ForwardScratch(const ConvArgs& a, const LastProblem& p)
      : x(a.x.shape, p.items, p.in, last_element_bytes(p)),
        y(a.y.shape, p.items, p.out, last_element_bytes(p)),
        turns_weight(!reads_weight(a.weight, p)),
        copies_bias(p.bias &&
                    !(reads_bias(a, p) && p.narrow_bias == (a.bias.dtype == DType::kBF16))),
        weight_bytes(turns_weight ? last_weight_elements(p) * last_element_bytes(p) : 0),
        bias_floats(copies_bias ? a.x.shape[0] * p.out : 0) {}
  int64_t bytes() const {
    return aligned_bytes(x.bytes()) + aligned_bytes(y.bytes()) + aligned_bytes(weight_bytes) +
           aligned_bytes(bias_floats * 4);
  }
};

const void* weight_for(const ConstView& weight, const LastProblem& p, void* memory,
                       cudaStream_t on) {
  if (reads_weight(weight, p)) return weight.data;
  channels_last_weight(weight, {p.out, p.in, p.bf16 ? DType::kBF16 : DType::kF32}, memory, on);
  return memory;
}

}  // namespace

bool cudnn_takes_last(const ConvArgs& a) {
  return a.how.channels_last && computes_in(a.x.dtype) && is_plain(a.x, a.y.dtype) &&
         a.y.shape.numel() > 0 && a.weight.shape.numel() > 0;
}
bool cudnn_takes_last(const ConvInputGradArgs& a) {
  return a.how.channels_last && computes_in(a.dy.dtype) && is_plain(a.dy, a.dx.dtype) &&
         a.dx.shape.numel() > 0 && a.weight.shape.numel() > 0;
}
bool cudnn_takes_last(const ConvWeightGradArgs& a) {
  return a.how.channels_last && computes_in(a.dy.dtype) && is_plain(a.dy, a.x.dtype) &&
         a.x.shape.numel() > 0 && a.dweight.shape.numel() > 0;
}

LastConvolutionPlans::Entry LastConvolutionPlans::make(const LastProblem& wanted) {
  auto& plans = context_.part<PlanTexts>();
  std::string refusal;
  for (const LastProblem& p : ways_of(wanted)) {
    try {
      return {p, plans.get(last_key(p), last_maker(p))};
    } catch (const Error& error) {
      refusal = error.what();
    }
  }
  context_.note_fallback(
      fmt::format("no plan of cuDNN for a convolution: {}: {}", last_key(wanted), refusal));
  return {wanted, std::nullopt};
}

const LastConvolutionPlans::Entry& LastConvolutionPlans::entry(const LastProblem& wanted) {
  const auto found = entries_.find(wanted);
  if (found != entries_.end()) return found->second;
  return entries_.emplace(wanted, make(wanted)).first->second;
}

void LastConvolutionPlans::prepare(const ConvArgs& args, PreparationList& work) {
  const LastProblem p = last_problem(args);
  if (!entries_.contains(p)) context_.part<PlanTexts>().prepare(last_key(p), last_maker(p), work);
}
void LastConvolutionPlans::prepare(const ConvInputGradArgs& args, PreparationList& work) {
  const LastProblem p = last_problem(args);
  if (!entries_.contains(p)) context_.part<PlanTexts>().prepare(last_key(p), last_maker(p), work);
}
void LastConvolutionPlans::prepare(const ConvWeightGradArgs& args, PreparationList& work) {
  const LastProblem p = last_problem(args);
  if (!entries_.contains(p)) context_.part<PlanTexts>().prepare(last_key(p), last_maker(p), work);
}

std::optional<int64_t> LastConvolutionPlans::workspace(const ConvArgs& args) {
  const Entry& made = entry(last_problem(args));
  if (!made.plan) return std::nullopt;
  return ForwardScratch(args, made.problem).bytes() + aligned_bytes(made.plan->workspace_bytes());
}

void LastConvolutionPlans::run(const ConvArgs& args, const Stream& stream) {
  const Entry& made = entry(last_problem(args));
  const LastProblem& p = made.problem;
  const ForwardScratch scratch(args, p);
  const cudaStream_t on = context_.stream();
  Workspace from(stream);
  void* x_memory = from.bytes(scratch.x.bytes());
  void* y_memory = from.bytes(scratch.y.bytes());
  void* weight_memory = from.bytes(scratch.weight_bytes);
  float* biases = from.floats(scratch.bias_floats);
  void* workspace = from.bytes(made.plan->workspace_bytes());

  const void* weight = weight_for(args.weight, p, weight_memory, on);
  if (scratch.copies_bias) {
    sum_biases(args.bias, args.shift, {args.x.shape[0], args.y.shape[3], p.out}, biases, on);
  }
  const bool finishes = scratch.y.needed() || (!p.bias && (args.bias.data || args.shift.data)) ||
                        (!p.adds && args.addend.data != nullptr);
  for (int64_t b = 0; b < args.x.shape[0]; ++b) {
    void* y = scratch.y.needed() ? y_memory : item_at(args.y, b);
    std::vector<PlanPointer> pointers{{kLastX, scratch.x.fill(item_at(args.x, b), x_memory, on)},
                                      {kLastWeight, weight},
                                      {kLastY, y}};
    if (p.bias) {
      pointers.push_back({kLastBias, scratch.copies_bias ? biases + b * p.out : args.bias.data});
    }
    if (p.adds) pointers.push_back({kLastAddend, item_at(args.addend, b)});
    made.plan->run(pointers, workspace);
    if (!finishes) continue;
    FinishArgs finish{y, p.out, args.y, b, {}, {}, {}};
    if (!p.bias) {
      finish.bias = args.bias;
      finish.shift = args.shift;
    }
    if (!p.adds) finish.addend = args.addend;
    finish_convolution(finish, on);
  }
}

std::optional<int64_t> LastConvolutionPlans::workspace(const ConvInputGradArgs& args) {
  const Entry& made = entry(last_problem(args));
  if (!made.plan) return std::nullopt;
  const LastProblem& p = made.problem;
  const int64_t bytes = last_element_bytes(p);
  const PaddedPicture dy(args.dy.shape, p.items, p.out, bytes),
      dx(args.dx.shape, p.items, p.in, bytes);
  return aligned_bytes(dy.bytes()) + aligned_bytes(dx.bytes()) +
         aligned_bytes(reads_weight(args.weight, p) ? 0 : last_weight_elements(p) * bytes) +
         aligned_bytes(made.plan->workspace_bytes());
}

void LastConvolutionPlans::run(const ConvInputGradArgs& args, const Stream& stream) {
  const Entry& made = entry(last_problem(args));
  const LastProblem& p = made.problem;
  const int64_t bytes = last_element_bytes(p);
  const PaddedPicture dy(args.dy.shape, p.items, p.out, bytes),
      dx(args.dx.shape, p.items, p.in, bytes);
  const cudaStream_t on = context_.stream();
  Workspace from(stream);
  void* dy_memory = from.bytes(dy.bytes());
  void* dx_memory = from.bytes(dx.bytes());
  void* weight_memory =
      from.bytes(reads_weight(args.weight, p) ? 0 : last_weight_elements(p) * bytes);
  void* workspace = from.bytes(made.plan->workspace_bytes());
  void* to = dx.needed() ? dx_memory : args.dx.data;
  const PlanPointer pointers[] = {{kLastX, to},
                                  {kLastWeight, weight_for(args.weight, p, weight_memory, on)},
                                  {kLastY, dy.fill(args.dy.data, dy_memory, on)}};
  made.plan->run(pointers, workspace);
  if (!dx.needed()) return;
  for (int64_t b = 0; b < p.items; ++b) {
    const auto* item = static_cast<const std::byte*>(to) + b * p.height * p.width * p.in * bytes;
    finish_convolution({item, p.in, args.dx, b, {}, {}, {}}, on);
  }
}

std::optional<int64_t> LastConvolutionPlans::workspace(const ConvWeightGradArgs& args) {
  const Entry& made = entry(last_problem(args));
  if (!made.plan) return std::nullopt;
  const LastProblem& p = made.problem;
  const int64_t bytes = last_element_bytes(p);
  const PaddedPicture dy(args.dy.shape, p.items, p.out, bytes),
      x(args.x.shape, p.items, p.in, bytes);
  return aligned_bytes(dy.bytes()) + aligned_bytes(x.bytes()) +
         aligned_bytes(last_weight_elements(p) * (p.wide ? 4 : bytes)) +
         aligned_bytes(made.plan->workspace_bytes());
}

void LastConvolutionPlans::run(const ConvWeightGradArgs& args, const Stream& stream) {
  const Entry& made = entry(last_problem(args));
  const LastProblem& p = made.problem;
  const int64_t bytes = last_element_bytes(p);
  const PaddedPicture dy(args.dy.shape, p.items, p.out, bytes),
      x(args.x.shape, p.items, p.in, bytes);
  const cudaStream_t on = context_.stream();
  Workspace from(stream);
  void* dy_memory = from.bytes(dy.bytes());
  void* x_memory = from.bytes(x.bytes());
  void* dweight = from.bytes(last_weight_elements(p) * (p.wide ? 4 : bytes));
  void* workspace = from.bytes(made.plan->workspace_bytes());
  const PlanPointer pointers[] = {{kLastX, x.fill(args.x.data, x_memory, on)},
                                  {kLastWeight, dweight},
                                  {kLastY, dy.fill(args.dy.data, dy_memory, on)}};
  made.plan->run(pointers, workspace);
  const DType dtype = p.wide || !p.bf16 ? DType::kF32 : DType::kBF16;
  weight_in_order(dweight, {p.out, p.in, dtype}, args.dweight, on);
}

}  // namespace halftone::cuda
