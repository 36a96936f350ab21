#include "halftone/kernels/cuda/cudnn_attention.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "halftone/kernels/workspace.h"

namespace halftone::cuda {
namespace {

enum AttentionId : int64_t {
  kQ = 1,
  kK,
  kV,
  kO,
  kStats,  // [B, Hq, S], the log-sum-exp of the scaled scores
  kScale,
  kQueryLengths,
  kKeyLengths,
  kMinusInfinity,
  kOne,
  kDO,
  kDQ,
  kDK,
  kDV,
  kDQSum,
  kScoreBias,
};

constexpr auto kBF16 = CUDNN_DATA_BFLOAT16;
constexpr auto kF32 = CUDNN_DATA_FLOAT;
// Beyond this much scratch memory a gradient whose dq varies from run to run is the better choice.
constexpr int64_t kDeterministicWorkspace = int64_t{1} << 30;
constexpr float kMinus = -std::numeric_limits<float>::infinity(), kOneValue = 1;

int64_t contiguous_stride(int64_t heads, const AttentionProblem& p) { return heads * p.dim; }

// [B, T, H, D] in memory as cuDNN sees it: {B, H, T, D}.
Dims head_strides(int64_t tokens, int64_t dim, int64_t token_stride) {
  return {tokens * token_stride, dim, token_stride, 1};
}
Dims swapped(const Dims& d) { return {d[0], d[1], d[3], d[2]}; }

bool takes(const ConstView& x) {
  return x.dtype == DType::kBF16 && x.format == nullptr && x.token_stride % 8 == 0;
}
template <class Args>
bool takes(const Args& args, int64_t largest_dim) {
  const auto& [how, q, k, v, lengths] = std::tie(args.how, args.q, args.k, args.v, args.lengths);
  const int64_t dim = q.shape[3];
  return !how.causal && takes(q) && takes(k) && takes(v) && dim % 8 == 0 && dim <= largest_dim &&
         q.shape.numel() > 0 && k.shape.numel() > 0 && q.shape[2] % k.shape[2] == 0 &&
         // Fewer are not worth a plan.
         q.shape[1] >= 32 && k.shape[1] >= 32 &&
         (lengths.data == nullptr || lengths.dtype == DType::kI32) &&
         (args.bias.data == nullptr || args.bias.dtype == DType::kF32 ||
          args.bias.dtype == DType::kBF16);
}

template <class Args>
AttentionProblem forward_of(const Args& args) {
  const auto& [q, k, v] = std::tie(args.q, args.k, args.v);
  AttentionProblem p;
  p.batch = q.shape[0];
  p.queries = q.shape[1];
  p.heads = q.shape[2];
  p.dim = q.shape[3];
  p.keys = k.shape[1];
  p.groups = k.shape[2];
  p.lengths = args.lengths.data != nullptr;
  p.bias = args.bias.data != nullptr;
  p.narrow_bias = p.bias && args.bias.dtype == DType::kBF16;
  p.bias_of_items = p.bias && bias_stride(args.bias.shape) != 0;
  const auto stride = [](const ConstView& x) {
    return x.token_stride > 0 ? x.token_stride : x.shape[2] * x.shape[3];
  };
  p.q_stride = stride(q);
  p.k_stride = stride(k);
  p.v_stride = stride(v);
  return p;
}
std::string str(const AttentionProblem& p) {
  return fmt::format(
      "attention{} of B={} Hq={} Hk={} S={} N={} D={}{}{}{}{}, tokens of q, k, v {} {} {} apart",
      p.backward ? "'s gradient" : "", p.batch, p.heads, p.groups, p.queries, p.keys, p.dim,
      p.lengths ? " with lengths" : "", p.bias ? " with a bias" : "",
      p.narrow_bias ? " in BF16" : "", p.bias_of_items ? " of each item" : "", p.q_stride,
      p.k_stride, p.v_stride);
}

// What both directions have in common: the operands, and the scores with their mask.
class Scores {
 public:
  Scores(GraphBuilder& graph, const AttentionProblem& p)
      : p_(p),
        g_(graph),
        q(g_.real(kQ, kBF16, query_dims(), head_strides(p.queries, p.dim, p.q_stride))),
        kt(g_.real(kK, kBF16, swapped(key_dims()),
                   swapped(head_strides(p.keys, p.dim, p.k_stride)))),
        scale(g_.by_value(kScale)) {
    if (p.lengths) {
      query_lengths = g_.real(kQueryLengths, CUDNN_DATA_INT32, {p.batch, 1, 1, 1}, {1, 1, 1, 1});
      key_lengths = g_.real(kKeyLengths, CUDNN_DATA_INT32, {p.batch, 1, 1, 1}, {1, 1, 1, 1});
    }
  }

  Dims query_dims() const { return {p_.batch, p_.heads, p_.queries, p_.dim}; }
  Dims key_dims() const { return {p_.batch, p_.groups, p_.keys, p_.dim}; }
  Dims score_dims() const { return {p_.batch, p_.heads, p_.queries, p_.keys}; }
  Dims row_dims() const { return {p_.batch, p_.heads, p_.queries, 1}; }

  Operand scaled() {  // {B, Hq, S, N}
    const Operand products = g_.temporary(kF32, score_dims());
    g_.matmul(q, kt, products, over(&query_lengths, &key_lengths, nullptr));
    Operand scores = g_.combine(CUDNN_POINTWISE_MUL, products, scale);
    if (p_.bias) {
      // Dense even where items share it: with dimensions of 1 gradients would be wrong.
      const int64_t plane = p_.queries * p_.keys;
      const Dims strides = {p_.bias_of_items ? p_.heads * plane : 0, plane, p_.keys, 1};
      scores =
          g_.combine(CUDNN_POINTWISE_ADD, scores,
                     g_.real(kScoreBias, p_.narrow_bias ? kBF16 : kF32, score_dims(), strides));
    }
    if (!p_.lengths) return scores;
    const Operand row = g_.index(scores, 2), column = g_.index(scores, 3);
    const Operand is_query = g_.logical(CUDNN_POINTWISE_CMP_LT, row, query_lengths);
    const Operand is_key = g_.logical(CUDNN_POINTWISE_CMP_LT, column, key_lengths);
    const Operand mask = g_.logical(CUDNN_POINTWISE_LOGICAL_AND, is_query, is_key);
    return g_.select(mask, scores, g_.by_value(kMinusInfinity));
  }

  GraphBuilder::Overrides over(const Operand* m, const Operand* n, const Operand* k) const {
    return p_.lengths ? GraphBuilder::Overrides{m, n, k} : GraphBuilder::Overrides{};
  }

 private:
  const AttentionProblem& p_;
  GraphBuilder& g_;

 public:
  Operand q, kt, scale, query_lengths, key_lengths;
};

Plan forward_plan(const AttentionProblem& p, const Cudnn& cudnn) {
  GraphBuilder g;
  Scores s(g, p);
  const Operand scores = s.scaled();
  const Operand largest = g.temporary(kF32, s.row_dims()), sum = g.temporary(kF32, s.row_dims());
  g.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, largest);
  const Operand e = g.apply(CUDNN_POINTWISE_EXP, g.combine(CUDNN_POINTWISE_SUB, scores, largest));
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, e, sum);
  const Operand stats = g.real(kStats, kF32, s.row_dims(), packed_strides(s.row_dims()));
  g.combine_into(CUDNN_POINTWISE_ADD, largest, g.apply(CUDNN_POINTWISE_LOG, sum), stats);
  const Operand probabilities = g.temporary(kBF16, s.score_dims());
  g.combine_into(CUDNN_POINTWISE_DIV, e, sum, probabilities);
  const Operand v = g.real(kV, kBF16, s.key_dims(), head_strides(p.keys, p.dim, p.v_stride));
  const Operand o = g.real(kO, kBF16, s.query_dims(),
                           head_strides(p.queries, p.dim, contiguous_stride(p.heads, p)));
  g.matmul(probabilities, v, o, s.over(&s.query_lengths, nullptr, &s.key_lengths));
  return g.build(cudnn, {});
}

// dv = p^T dy; ds = p (dy v^T - sum(dy o)); dk = scale ds^T q; dq = scale ds k.
Plan backward_plan(const AttentionProblem& p, bool deterministic, const Cudnn& cudnn) {
  GraphBuilder g;
  Scores s(g, p);
  const Dims query_strides = head_strides(p.queries, p.dim, contiguous_stride(p.heads, p));
  const Dims key_strides = head_strides(p.keys, p.dim, contiguous_stride(p.groups, p));
  const Operand d_o =
      g.real(kDO, kBF16, s.query_dims(), head_strides(p.queries, p.dim, p.dy_stride));
  const Operand o = g.real(kO, kBF16, s.query_dims(), query_strides);
  const Operand vt =
      g.real(kV, kBF16, swapped(s.key_dims()), swapped(head_strides(p.keys, p.dim, p.v_stride)));
  const Operand stats = g.real(kStats, kF32, s.row_dims(), packed_strides(s.row_dims()));

  const Operand row_sum = g.temporary(kF32, s.row_dims());
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, g.combine(CUDNN_POINTWISE_MUL, d_o, o), row_sum);
  // The engine wants this product (it is where dropout would be): without it dq and dk are NaN.
  const Operand dot = g.combine(CUDNN_POINTWISE_MUL, row_sum, g.by_value(kOne));

  const Operand scores = s.scaled();
  const Operand probabilities =
      g.apply(CUDNN_POINTWISE_EXP, g.combine(CUDNN_POINTWISE_SUB, scores, stats));

  const int64_t plane = p.queries * p.keys;
  const auto transposed = [&](Operand x) {  // bf16 {B, Hq, N, S}
    const Operand y =
        g.temporary(kBF16, swapped(s.score_dims()), {p.heads * plane, plane, 1, p.keys});
    g.reshape(x, y);
    return y;
  };
  // a^T b into dk or dv, summed over the heads that share a key.
  const auto key_gradient = [&](Operand a, Operand b, AttentionId id) {
    const Operand y = g.real(id, kBF16, s.key_dims(), key_strides);
    const auto over = s.over(&s.key_lengths, nullptr, &s.query_lengths);
    if (p.heads == p.groups) {
      g.matmul(a, b, y, over);
    } else {
      const Operand all = g.temporary(kBF16, {p.batch, p.heads, p.keys, p.dim});
      g.matmul(a, b, all, over);
      g.reduce(CUDNN_REDUCE_TENSOR_ADD, all, y);
    }
  };
  key_gradient(transposed(probabilities), d_o, kDV);

  const Operand d_probabilities = g.temporary(kF32, s.score_dims());
  g.matmul(d_o, vt, d_probabilities, s.over(&s.query_lengths, &s.key_lengths, nullptr));
  const Operand centred = g.combine(CUDNN_POINTWISE_SUB, d_probabilities, dot);
  const Operand d_scores = g.combine(
      CUDNN_POINTWISE_MUL, g.combine(CUDNN_POINTWISE_MUL, centred, probabilities), s.scale);
  key_gradient(transposed(d_scores), s.q, kDK);

  const Operand k = g.temporary(kBF16, s.key_dims(), head_strides(p.keys, p.dim, p.k_stride));
  g.reshape(s.kt, k);
  const Operand dq = g.real(kDQ, kBF16, s.query_dims(), query_strides);
  const auto over = s.over(&s.query_lengths, nullptr, &s.key_lengths);
  if (deterministic) {
    g.matmul(d_scores, k, dq, over);
  } else {  // sums in memory of its own: a temporary would select a slow engine
    const Operand sum = g.real(kDQSum, kF32, s.query_dims(), packed_strides(s.query_dims()));
    g.matmul(d_scores, k, sum, over);
    g.copy_into(sum, dq);
  }
  const bool limited = deterministic && !p.repeatable;
  return g.build(cudnn, {.most_workspace = limited ? kDeterministicWorkspace : INT64_MAX});
}

// The deterministic one keeps about this much; where that is too much it is not even tried.
bool may_be_deterministic(const AttentionProblem& p) {
  return p.repeatable || p.batch * p.heads * p.queries * p.keys * 2 < kDeterministicWorkspace;
}

MakePlan maker(const AttentionProblem& p, bool deterministic) {
  return [=](const Cudnn& cudnn) {
    return p.backward ? backward_plan(p, deterministic, cudnn) : forward_plan(p, cudnn);
  };
}

std::string key_of(const AttentionProblem& p, bool deterministic) {
  return fmt::format("{}{}{} strides {} {} {} {}", str(p), deterministic ? ", deterministic" : "",
                     p.repeatable ? " in any case" : "", p.q_stride, p.k_stride, p.v_stride,
                     p.dy_stride);
}

// Arrays of a run besides its arguments, in the order in which they are taken.
struct Scratch {
  void *stats, *query_lengths, *key_lengths;

  static int64_t bytes(const AttentionProblem& p) {
    return aligned_bytes(p.batch * p.heads * p.queries * 4) +
           (p.lengths ? 2 * aligned_bytes(p.batch * 4) : 0);
  }
  // Statistics where they are wanted, or here.
  Scratch(Workspace& from, const AttentionProblem& p, void* statistics)
      : stats(statistics != nullptr ? statistics : from.bytes(p.batch * p.heads * p.queries * 4)),
        query_lengths(p.lengths ? from.bytes(p.batch * 4) : nullptr),
        key_lengths(p.lengths ? from.bytes(p.batch * 4) : nullptr) {}

  void fill(const AttentionProblem& p, const void* lengths, cudaStream_t stream) const {
    if (!p.lengths) return;
    write_sequence_lengths(
        {static_cast<const int32_t*>(lengths), p.batch, p.queries, p.keys,
         static_cast<int32_t*>(query_lengths), static_cast<int32_t*>(key_lengths)},
        stream);
  }
  void append(std::vector<PlanPointer>& to, const AttentionProblem& p) const {
    to.push_back({kStats, stats});
    if (!p.lengths) return;
    to.insert(
        to.end(),
        {{kQueryLengths, query_lengths}, {kKeyLengths, key_lengths}, {kMinusInfinity, &kMinus}});
  }
};

int64_t output_bytes(const AttentionProblem& p) {  // of y or dq in BF16
  return p.batch * p.queries * p.heads * p.dim * 2;
}

}  // namespace

bool cudnn_takes(const AttentionArgs& a) { return takes(a, 256) && a.y.dtype == DType::kBF16; }

bool cudnn_takes(const AttentionGradArgs& a) {
  // The gradient of a bias is the plain kernel's.
  return takes(a, 128) && takes(a.dy) && a.dbias.data == nullptr && a.dq.dtype == DType::kBF16 &&
         a.dk.dtype == DType::kBF16 && a.dv.dtype == DType::kBF16;
}

AttentionProblem AttentionPlans::backward_of(const AttentionGradArgs& args) const {
  AttentionProblem p = forward_of(args);
  p.backward = true;
  p.repeatable = context_.deterministic();
  p.dy_stride = args.dy.token_stride > 0 ? args.dy.token_stride : p.heads * p.dim;
  return p;
}

void AttentionPlans::prepare(const AttentionProblem& p, PreparationList& work) {
  if (entries_.contains(p)) return;
  const bool deterministic = !p.backward || may_be_deterministic(p);
  context_.part<PlanTexts>().prepare(key_of(p, deterministic), maker(p, deterministic), work);
}

void AttentionPlans::prepare(const AttentionArgs& args, PreparationList& work) {
  prepare(forward_of(args), work);
}

void AttentionPlans::prepare(const AttentionGradArgs& args, PreparationList& work) {
  prepare(forward_of(args), work);
  prepare(backward_of(args), work);
}

AttentionPlans::Entry AttentionPlans::make(const AttentionProblem& p) {
  Entry made;
  try {
    auto& plans = context_.part<PlanTexts>();
    if (!p.backward) {
      made.plan = plans.get(key_of(p, true), maker(p, true));
      return made;
    }
    if (may_be_deterministic(p)) {
      try {
        made.plan = plans.get(key_of(p, true), maker(p, true));
        made.deterministic = true;
        return made;
      } catch (const Error&) {  // then the other, or none of cuDNN's
        if (p.repeatable) throw;
      }
    }
    made.plan = plans.get(key_of(p, false), maker(p, false));
  } catch (const Error& error) {
    made.refusal = fmt::format("{}: {}", str(p), error.what());
    context_.note_fallback("plain attention instead of cuDNN's: " + made.refusal);
  }
  return made;
}

const AttentionPlans::Entry& AttentionPlans::entry(const AttentionProblem& problem) {
  const auto found = entries_.find(problem);
  if (found != entries_.end()) return found->second;
  return entries_.emplace(problem, make(problem)).first->second;
}

std::vector<std::string> AttentionPlans::fallbacks() const {
  std::vector<std::string> reasons;
  for (const auto& [problem, made] : entries_) {
    if (!made.plan) reasons.push_back(made.refusal);
  }
  return reasons;
}

// The log-sum-exp is written by inference too: it is small beside y.
std::optional<int64_t> AttentionPlans::workspace(const AttentionArgs& args) {
  const AttentionProblem p = forward_of(args);
  const Entry& made = entry(p);
  if (!made.plan) return std::nullopt;
  return Scratch::bytes(p) + aligned_bytes(made.plan->workspace_bytes());
}

void AttentionPlans::run(const AttentionArgs& args, const Stream& stream) {
  const AttentionProblem p = forward_of(args);
  const Plan& plan = *entry(p).plan;
  Workspace from(stream);
  const Scratch scratch(from, p, args.statistics.data);
  scratch.fill(p, args.lengths.data, context_.stream());
  std::vector<PlanPointer> pointers{{kQ, args.q.data},
                                    {kK, args.k.data},
                                    {kV, args.v.data},
                                    {kO, args.y.data},
                                    {kScale, &args.how.scale}};
  if (p.bias) pointers.push_back({kScoreBias, args.bias.data});
  scratch.append(pointers, p);
  plan.run(pointers, from.bytes(plan.workspace_bytes()));
}

std::optional<int64_t> AttentionPlans::workspace(const AttentionGradArgs& args) {
  const AttentionProblem p = backward_of(args);
  const Entry& forward = entry(forward_of(args));
  if (!forward.plan) return std::nullopt;
  const Entry& backward = entry(p);
  if (!backward.plan) return std::nullopt;
  return Scratch::bytes(p) + aligned_bytes(output_bytes(p)) +
         (backward.deterministic ? 0 : aligned_bytes(2 * output_bytes(p))) +
         aligned_bytes(std::max(forward.plan->workspace_bytes(), backward.plan->workspace_bytes()));
}

// Where the outputs of the forward pass are not among the arguments, it is run again.
void AttentionPlans::run(const AttentionGradArgs& args, const Stream& stream) {
  const AttentionProblem p = backward_of(args);
  const Entry& backward = entry(p);
  const Plan& forward = *entry(forward_of(args)).plan;
  Workspace from(stream);
  const bool handed = args.statistics.data != nullptr;
  const Scratch scratch(from, p, const_cast<void*>(args.statistics.data));
  scratch.fill(p, args.lengths.data, context_.stream());
  const void* o = handed ? args.y.data : from.bytes(output_bytes(p));
  std::vector<PlanPointer> pointers{
      {kQ, args.q.data}, {kK, args.k.data}, {kV, args.v.data}, {kO, o}, {kScale, &args.how.scale}};
  if (p.bias) pointers.push_back({kScoreBias, args.bias.data});
  scratch.append(pointers, p);
  std::vector<PlanPointer> gradients = pointers;
  gradients.insert(gradients.end(), {{kOne, &kOneValue},
                                     {kDO, args.dy.data},
                                     {kDQ, args.dq.data},
                                     {kDK, args.dk.data},
                                     {kDV, args.dv.data}});
  if (!backward.deterministic) {
    gradients.push_back({kDQSum, from.bytes(2 * output_bytes(p))});
  }
  std::byte* shared =
      from.bytes(std::max(forward.workspace_bytes(), backward.plan->workspace_bytes()));
  if (!handed) forward.run(pointers, shared);
  backward.plan->run(gradients, shared);
}

}  // namespace halftone::cuda
