#include "halftone/kernels/cuda/fused_source.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "halftone/base/error.h"

namespace halftone::cuda {
namespace {

constexpr int kWarp = 32;

bool is_power_of_two(int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

const char* type_name(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "fp16";
    default:
      return "float";
  }
}

class Writer {
 public:
  Writer(const FusedRowsAttributes& how, std::span<const DType> types, const FusedTuning& tuning)
      : how_(how), types_(types), tuning_(tuning), length_(how.steps.at(0).length) {
    for (const RowStep& step : how.steps) {
      HT_ASSERT(step.length == length_);
      const bool rope = step.function == RowFunction::kRope;
      for (int k = 0; k < operand_count(step.function); ++k) {
        if (step.operands[k] >= static_cast<int>(how.inputs.size())) continue;
        source_of(step.operands[k], rope && k > 0 ? step.width : 0, step.rope.layout);
      }
    }
    choose_vector();
    choose_threads();
    // Where threads of a block wait for each other, loading ahead and more rows at a time share the
    // registers: fewer threads than fit, nothing kept, and long rows are not loaded ahead.
    const bool waits = needs_whole_row();
    constexpr int64_t kMostAhead = 3;
    prefetch_ = tuning.prefetch < 0 ? !waits || vectors_ <= kMostAhead : tuning.prefetch > 0;
    keep_ = tuning.keep < 0 ? !waits : tuning.keep > 0;
    resident_threads_ = tuning.resident_threads > 0 ? tuning.resident_threads : waits ? 768 : 1024;
  }

  FusedSource write() {
    body_.clear();
    for (size_t i = 0; i < how_.steps.size(); ++i) write_step(i);
    std::string text =
        "#include \"halftone/kernels/cuda/fused_prelude.cuh\"\n"
        "using namespace halftone;\nusing namespace halftone::fused;\n";
    text += fmt::format(
        "constexpr int kLength = {}, kThreads = {}, kVectors = {}, kWide = {}, kSites = {}, "
        "kBlocks = {};\n",
        length_, threads_, vectors_, wide_, std::max(sites_, 1),
        std::clamp<int64_t>(resident_threads_ / threads_, 1, 16));
    text +=
        "extern \"C\" __global__ void __launch_bounds__(kThreads, kBlocks)\n"
        "fused_rows(const Params p) {\n"
        "  [[maybe_unused]] __shared__ alignas(16) float sums[kSites][2][32];\n"
        "  [[maybe_unused]] __shared__ alignas(16) float peaks[kSites][2][32];\n"
        "  [[maybe_unused]] extern __shared__ float exchange[];\n"
        "  wait_for_inputs();\n"
        "  const int first = blockIdx.y * (kThreads * kVectors * kWide) + threadIdx.x * kWide;\n";
    text +=
        "  [[maybe_unused]] int parity = 0;\n  const int rows = p.rows;\n"
        "  [[maybe_unused]] const unsigned per_item = p.rows_per_item;\n"
        "  int row = blockIdx.x;\n  if (row >= rows) return;\n";
    for (size_t i = 0; i < sources_.size(); ++i) {
      text += declare_pointer(i);
      const RowSource source = input_of(i).source;
      if (source == RowSource::kPerRow || keep_) text += declare_values(i);
      if (source == RowSource::kPerRow && prefetch_) text += fetch(i, "row");
      if (source == RowSource::kShared && keep_) text += fetch(i, "0") + unpack(i);
    }
    text += "  [[maybe_unused]] int item = -1;\n";
    text += "  for (; row < rows; row += gridDim.x) {\n";
    for (size_t i = 0; i < sources_.size(); ++i) {
      if (input_of(i).source != RowSource::kPerRow) continue;
      // Packed until it is used, except where the next row takes its place.
      text += prefetch_ ? unpack(i) : fetch(i, "row");
    }
    // The next row is on its way while this one is worked on.
    text += "  { const int next = row + gridDim.x;\n  if (next < rows) {\n";
    for (size_t i = 0; i < sources_.size(); ++i) {
      if (input_of(i).source == RowSource::kPerRow && prefetch_) text += fetch(i, "next");
    }
    text += "  } }\n" + write_items() + body_ + "  parity ^= 1;\n  }\n}\n";
    FusedSource source;
    source.text = std::move(text);
    source.threads = static_cast<int>(threads_);
    source.pieces = pieces_;
    source.shared_bytes = exchanges_ ? threads_ * vectors_ * wide_ * 4 : 0;
    return source;
  }

 private:
  // Something to load: an input as it lies, or as cosines or sines that all heads of a row share.
  struct Source {
    int input = 0;
    int64_t table_width = 0;  // of the head; 0 where it is no table
    bool interleaved = false;
  };

  static int operand_count(RowFunction function) {
    switch (function) {
      case RowFunction::kAdd:
      case RowFunction::kMul:
      case RowFunction::kSiluMul:
      case RowFunction::kRmsNorm:
        return 2;
      case RowFunction::kRope:
        return 3;
      default:
        return 1;
    }
  }

  size_t source_of(int input, int64_t table_width, RopeLayout layout) {
    const bool interleaved = layout == RopeLayout::kInterleaved;
    for (size_t i = 0; i < sources_.size(); ++i) {
      const Source& s = sources_[i];
      if (s.input == input && s.table_width == table_width &&
          (table_width == 0 || s.interleaved == interleaved)) {
        return i;
      }
    }
    sources_.push_back({input, table_width, interleaved});
    return sources_.size() - 1;
  }
  const FusedRowsAttributes::Input& input_of(size_t i) const {
    return how_.inputs[sources_[i].input];
  }
  bool is_half_table(size_t i) const {
    return sources_[i].table_width > 0 && sources_[i].interleaved;
  }

  int64_t span() const { return threads_ * vectors_ * wide_; }
  bool exact() const { return pieces_ * span() == length_; }

  // The widest access that every length, start and stride allows.
  void choose_vector() {
    const auto fits = [&](int64_t v) {
      if (length_ % v != 0) return false;
      for (size_t i = 0; i < sources_.size(); ++i) {
        const auto& input = input_of(i);
        const int64_t unit = is_half_table(i) ? std::max<int64_t>(v / 2, 1) : v;
        if (input.length % unit != 0 || input.begin % unit != 0 || input.stride % unit != 0) {
          return false;
        }
      }
      return std::all_of(how_.steps.begin(), how_.steps.end(),
                         [&](const RowStep& step) { return step.width % v == 0; });
    };
    wide_ = 8;
    while (wide_ > 1 && !fits(wide_)) wide_ /= 2;
  }

  bool needs_whole_row() const {
    return std::any_of(how_.steps.begin(), how_.steps.end(), [&](const RowStep& step) {
      switch (step.function) {
        case RowFunction::kRmsNorm:
        case RowFunction::kLayerNorm:
          return !is_within_warp(step.width);
        case RowFunction::kQuantize:
          return step.format->span == ScaleSpan::kRow && !step.format->static_scale;
        case RowFunction::kRope:
          return exchanges(step);
        default:
          return false;
      }
    });
  }
  // A part of a row (a head) whose lanes lie in one warp.
  bool is_within_warp(int64_t width) const {
    return is_power_of_two(width / wide_) && width / wide_ <= kWarp;
  }
  bool exchanges(const RowStep& step) const {
    return step.rope.layout == RopeLayout::kHalves || wide_ == 1;
  }

  void choose_threads() {
    const int64_t packs = length_ / wide_;
    const auto up = [](int64_t n) { return (n + kWarp - 1) / kWarp * kWarp; };
    if (!needs_whole_row()) {
      constexpr int64_t kMost = 256, kFew = 128;
      threads_ = std::min<int64_t>(up(packs), kMost);
      for (int64_t t = threads_; t >= kFew; t -= kWarp) {  // without a rest, if that can be
        if (packs % t == 0) {
          threads_ = t;
          break;
        }
      }
      vectors_ = 1;
      pieces_ = (packs + threads_ - 1) / threads_;
      return;
    }
    vectors_ = (packs + tuning_.most_threads - 1) / tuning_.most_threads;
    for (int64_t more = vectors_; more < vectors_ + 4; ++more) {
      if (packs % (more * kWarp) == 0) {
        vectors_ = more;
        break;
      }
    }
    threads_ = up((packs + vectors_ - 1) / vectors_);
  }

  // ---- inputs -----------------------------------------------------------------------------------

  int64_t input_width(size_t i) const {
    return is_half_table(i) ? std::max<int64_t>(wide_ / 2, 1) : wide_;
  }

  std::string declare_pointer(size_t i) const {
    return fmt::format(
        "  const {0}* const from{1} = static_cast<const {0}*>(p.inputs[{3}]) + {2}LL;\n",
        type_name(types_[sources_[i].input]), i, input_of(i).begin, sources_[i].input);
  }
  std::string declare_values(size_t i) const {
    return fmt::format(
        "  Pack<{0}, {2}> raw{1}[kVectors] = {{}}; float in{1}[kVectors][{2}] = {{}};\n",
        type_name(types_[sources_[i].input]), i, input_width(i));
  }

  // Where vector v's columns lie within a row of input i.
  std::string column(size_t i) const {
    if (const int64_t width = sources_[i].table_width; width > 0) {
      return is_half_table(i) ? fmt::format("c % {} / 2", width) : fmt::format("c % {}", width / 2);
    }
    return input_of(i).length == length_ ? "c" : fmt::format("c % {}", input_of(i).length);
  }

  std::string each_vector(const std::string& what) const {
    return fmt::format(
        "  #pragma unroll\n  for (int v = 0; v < kVectors; ++v) {{ const int c = first + v * "
        "(kThreads * kWide); {}{} }}\n",
        exact() ? "(void)c; " : "if (c < kLength) ", what);
  }

  std::string fetch(size_t i, const std::string& row) const {
    const char* how = input_of(i).source == RowSource::kPerRow ? "load_once"
                      : keep_                                  ? "load_shared"
                                                               : "load_again";
    return each_vector(fmt::format("raw{0}[v] = {6}<{1}, {2}>(from{0} + {3} * {4}LL + {5});", i,
                                   type_name(types_[sources_[i].input]), input_width(i), row,
                                   input_of(i).stride, column(i), how));
  }
  static std::string unpack(size_t i) {
    return fmt::format(
        "  #pragma unroll\n  for (int v = 0; v < kVectors; ++v) unpack(raw{0}[v], in{0}[v]);\n", i);
  }

  std::string write_items() const {
    std::string text;
    for (size_t i = 0; i < sources_.size(); ++i) {
      if (input_of(i).source == RowSource::kPerItem) text += fetch(i, "item") + unpack(i);
    }
    if (text.empty()) return text;
    constexpr const char* kItem = "static_cast<int>(static_cast<unsigned>(row) / per_item)";
    if (!keep_) return fmt::format("  item = {};\n", kItem);
    return fmt::format("  if (const int own = {}; own != item) {{\n  item = own;\n{}  }}\n", kItem,
                       text);
  }

  // ---- steps ------------------------------------------------------------------------------------

  std::string operand(const RowStep& step, int k) {
    const int slot = step.operands[k], inputs = static_cast<int>(how_.inputs.size());
    if (slot >= inputs) return fmt::format("step{}", slot - inputs);
    const bool table = step.function == RowFunction::kRope && k > 0;
    const size_t source = source_of(slot, table ? step.width : 0, step.rope.layout);
    const RowSource kind = input_of(source).source;
    const bool per_row = kind == RowSource::kPerRow;
    if ((per_row ? !prefetch_ : !keep_) && read_.insert(source).second) {
      if (!per_row) {
        body_ += declare_values(source) + fetch(source, kind == RowSource::kShared ? "0" : "item");
      }
      body_ += unpack(source);
    }
    return fmt::format("in{}", source);
  }

  // y[v][i] = expression, for every value.
  void each(size_t index, const std::string& expression) {
    body_ += fmt::format(
        "  #pragma unroll\n  for (int v = 0; v < kVectors; ++v) {{\n  #pragma unroll\n"
        "  for (int i = 0; i < kWide; ++i) step{}[v][i] = {};\n  }}\n",
        index, expression);
  }

  void write_step(size_t index) {
    const RowStep& s = how_.steps[index];
    if (s.function == RowFunction::kQuantize) return write_quantize(s);
    body_ += fmt::format("  float step{}[kVectors][kWide];\n", index);
    const bool two = operand_count(s.function) > 1;
    const std::string a = operand(s, 0) + "[v][i]", b = two ? operand(s, 1) + "[v][i]" : "";
    switch (s.function) {
      case RowFunction::kAdd:
        each(index, a + " + " + b);
        break;
      case RowFunction::kMul:
        each(index, a + " * " + b);
        break;
      case RowFunction::kAffine:
        each(index, fmt::format("{} * {:a}f + {:a}f", a, s.affine.scale, s.affine.shift));
        break;
      case RowFunction::kUnary:
        each(index, fmt::format("{}({})", function_name(s.unary.function), a));
        break;
      case RowFunction::kSiluMul:
        each(index,
             fmt::format("{}({}) * {}", s.dtype == DType::kBF16 ? "quick_silu" : "silu", a, b));
        break;
      case RowFunction::kCast:
        each(index, a);
        break;
      case RowFunction::kRmsNorm:
        write_moment(s, operand(s, 0), "", "rstd", index);
        each(index, fmt::format("{} * rstd{}[v] * {}", a, index, b));
        break;
      case RowFunction::kLayerNorm:
        write_mean(s, operand(s, 0), index);
        write_moment(s, operand(s, 0), fmt::format("mean{}[v]", index), "rstd", index);
        each(index, fmt::format("({} - mean{}[v]) * rstd{}[v]", a, index, index));
        break;
      case RowFunction::kRope:
        write_rope(s, index);
        break;
      case RowFunction::kQuantize:
        break;
    }
    if (s.dtype == DType::kBF16) {
      body_ += fmt::format(
          "  #pragma unroll\n  for (int v = 0; v < kVectors; ++v) round_all(step{}[v]);\n", index);
    }
    if (s.output >= 0) {
      body_ +=
          each_vector(fmt::format("store(static_cast<{}*>(p.outputs[{}]) + static_cast<long "
                                  "long>(row) * kLength + c, step{}[v]);",
                                  type_name(s.dtype), s.output, index));
    }
  }

  static const char* function_name(Function function) {
    switch (function) {
      case Function::kTanh:
        return "tanhf";
      case Function::kSigmoid:
        return "sigmoid";
      case Function::kSilu:
        return "silu";
      case Function::kGelu:
        return "gelu";
      case Function::kSin:
        return "sinf";
      case Function::kCos:
        return "cosf";
    }
    return "";
  }

  // total{index}[v]: `term` summed over what a norm spans.
  void write_total(const RowStep& s, const std::string& name, const std::string& term) {
    const std::string guard = exact() ? "" : "if (first + v * (kThreads * kWide) < kLength) ";
    body_ += fmt::format(
        "  float {0}[kVectors];\n  #pragma unroll\n  for (int v = 0; v < kVectors; ++v) {{\n"
        "  float part = 0.0f;\n  {2}{{\n  #pragma unroll\n  for (int i = 0; i < kWide; ++i) {{ {1} "
        "}}\n  }}\n  {0}[v] = part;\n  }}\n",
        name, term, guard);
    if (s.width == length_ && pieces_ == 1) {
      body_ += fmt::format(
          "  {{ float part = 0.0f;\n  #pragma unroll\n  for (int v = 0; v < kVectors; ++v) part += "
          "{0}[v];\n  part = reduce_block<Sum, kThreads>(part, sums[{1}][parity]);\n  #pragma "
          "unroll\n  for (int v = 0; v < kVectors; ++v) {0}[v] = part; }}\n",
          name, sites_++);
      return;
    }
    const int64_t lanes = s.width / wide_;
    if (is_within_warp(s.width)) {
      body_ += fmt::format(
          "  #pragma unroll\n  for (int v = 0; v < kVectors; ++v) {0}[v] = reduce_lanes<Sum, "
          "{1}>({0}[v]);\n",
          name, lanes);
      return;
    }
    // Parts of a row that no power of two divides: through shared memory.
    exchanges_ = true;
    body_ += fmt::format(
        "  __syncthreads();\n  #pragma unroll\n  for (int v = 0; v < kVectors; ++v) exchange[v * "
        "kThreads + threadIdx.x] = {0}[v];\n  __syncthreads();\n  #pragma unroll\n"
        "  for (int v = 0; v < kVectors; ++v) {{ const int at = (v * kThreads + threadIdx.x) / {1} "
        "* {1};\n  float part = 0.0f; for (int i = 0; i < {1}; ++i) if (at + i < kVectors * "
        "kThreads) part += exchange[at + i];\n  {0}[v] = part; }}\n  __syncthreads();\n",
        name, lanes);
  }

  void write_mean(const RowStep& s, const std::string& x, size_t index) {
    write_total(s, fmt::format("mean{}", index), fmt::format("part += {}[v][i];", x));
    body_ +=
        fmt::format("  #pragma unroll\n  for (int v = 0; v < kVectors; ++v) mean{}[v] *= {:a}f;\n",
                    index, 1.0f / static_cast<float>(s.width));
  }

  void write_moment(const RowStep& s, const std::string& x, const std::string& mean,
                    const std::string& name, size_t index) {
    const std::string total = fmt::format("{}{}", name, index);
    const std::string term =
        mean.empty()
            ? fmt::format("part = fmaf({0}[v][i], {0}[v][i], part);", x)
            : fmt::format("const float d = {}[v][i] - {}; part = fmaf(d, d, part);", x, mean);
    write_total(s, total, term);
    body_ += fmt::format(
        "  #pragma unroll\n  for (int v = 0; v < kVectors; ++v) {0}[v] = rsqrtf({0}[v] * "
        "{1:a}f + {2:a}f);\n",
        total, 1.0f / static_cast<float>(s.width), s.norm.eps);
  }

  void write_rope(const RowStep& s, size_t index) {
    const std::string x = operand(s, 0), cosine = operand(s, 1), sine = operand(s, 2);
    const char* sign = s.rope.inverse ? "-" : "";
    if (!exchanges(s)) {
      body_ += fmt::format(
          "  #pragma unroll\n  for (int v = 0; v < kVectors; ++v) {{\n  #pragma unroll\n"
          "  for (int i = 0; i < kWide; i += 2) {{\n"
          "  const float a = {1}[v][i], b = {1}[v][i + 1], k = {2}[v][i / 2], l = {4}{3}[v][i / "
          "2];\n  step{0}[v][i] = a * k - b * l;\n  step{0}[v][i + 1] = a * l + b * k;\n  }} }}\n",
          index, x, cosine, sine, sign);
      return;
    }
    exchanges_ = true;
    const int64_t half = s.width / 2;
    const bool halves = s.rope.layout == RopeLayout::kHalves;
    const std::string is_first =
        halves ? fmt::format("(c + i) % {} < {}", s.width, half) : "(c + i) % 2 == 0";
    const std::string distance = halves ? std::to_string(half) : "1";
    body_ += fmt::format(
        "  __syncthreads();\n  #pragma unroll\n  for (int v = 0; v < kVectors; ++v) {{ const int "
        "at "
        "= (v * kThreads + threadIdx.x) * kWide;\n  #pragma unroll\n  for (int i = 0; i < kWide; "
        "++i) exchange[at + i] = {1}[v][i]; }}\n  __syncthreads();\n  #pragma unroll\n"
        "  for (int v = 0; v < kVectors; ++v) {{ const int at = (v * kThreads + threadIdx.x) * "
        "kWide, c = at;\n  #pragma unroll\n  for (int i = 0; i < kWide; ++i) {{ const bool lower = "
        "{5};\n  const float other = c + i < kLength ? exchange[lower ? at + i + {6} : at + i - "
        "{6}] : 0.0f;\n  const float k = {2}[v][i], l = {4}{3}[v][i];\n  step{0}[v][i] = lower ? "
        "{1}[v][i] * k - other * l : other * l + {1}[v][i] * k; }} }}\n  __syncthreads();\n",
        index, x, cosine, sine, sign, is_first, distance);
  }

  void write_quantize(const RowStep& s) {
    const Format& f = *s.format;
    const std::string x = operand(s, 0);
    if (f.span == ScaleSpan::kBlock) return write_quantize_blocks(s, x);
    const char* element = f.element == ElementType::kE4M3 ? "E4M3" : "E5M2";
    const std::string codes = fmt::format(
        "store_codes<{}>(static_cast<unsigned char*>(p.outputs[{}]) + static_cast<long long>(row) "
        "* kLength + c, {}[v], factor);",
        element, s.output, x);
    if (f.static_scale) {
      const bool rows = f.span == ScaleSpan::kRow;
      body_ += fmt::format(
          "  {{ const float scale = p.static_scales[{0}], factor = 1.0f / scale;\n  if "
          "(threadIdx.x "
          "== 0 && blockIdx.y == 0{1}) static_cast<float*>(p.scales[{0}])[{2}] = scale;\n{3}  }}\n",
          s.output, rows ? "" : " && row == 0", rows ? "row" : "0", each_vector(codes));
      return;
    }
    HT_ASSERT(f.span == ScaleSpan::kRow);
    body_ += fmt::format(
        "  {{ float peak = 0.0f;\n  #pragma unroll\n  for (int v = 0; v < kVectors; ++v) {{\n{0}"
        "  }}\n  peak = reduce_block<Largest, kThreads>(peak, peaks[{1}][parity]);\n"
        "  const float scale = amax_scale(peak, {2}::kMax), factor = 1.0f / "
        "scale;\n  if (threadIdx.x == 0) static_cast<float*>(p.scales[{3}])[row] = scale;\n{4}  "
        "}}\n",
        peak_of(x), sites_++, element, s.output, each_vector(codes));
  }

  static std::string peak_of(const std::string& x) {
    return fmt::format(
        "  #pragma unroll\n  for (int i = 0; i < kWide; ++i) peak = Largest::of(peak, "
        "{}[v][i]);\n",
        x);
  }

  // A scale for each block, whose lanes are neighbours.
  void write_quantize_blocks(const RowStep& s, const std::string& x) {
    const Format& f = *s.format;
    const int64_t lanes = f.block / wide_, per_row = f.scales_per_row(length_);
    HT_ASSERT(f.block % wide_ == 0 && !f.four_over_six && f.tile_rows == 1);
    std::string text = fmt::format(
        "  #pragma unroll\n  for (int v = 0; v < kVectors; ++v) {{ float peak = 0.0f;\n{}  peak = "
        "reduce_lanes<Largest, {}>(peak);\n  const int c = first + v * (kThreads * kWide);\n",
        peak_of(x), lanes);
    if (f.global_scale) {
      HT_ASSERT(f.static_scale && length_ % f.block == 0);
      body_ += fmt::format(
          "  if (row == 0 && threadIdx.x == 0 && blockIdx.y == 0) *p.global_scales[{0}] = "
          "p.static_scales[{0}];\n",
          s.output);
      text += fmt::format(
          "  const float g = p.static_scales[{0}];\n  const unsigned char scale = "
          "nvfp4_block_scale(peak, 6.0f, g, {1:a}f);\n  const float factor = "
          "nvfp4_reciprocal(decode<E4M3>(scale), g);\n  store_nibbles(static_cast<unsigned "
          "char*>(p.outputs[{0}]) + static_cast<long long>(row) * (kLength / 2) + c / 2, {2}[v], "
          "factor, is_finite(peak) && is_finite(factor), c < kLength);\n",
          s.output, f.min_block_scale, x);
    } else {
      const char* element = f.element == ElementType::kE4M3 ? "E4M3" : "E5M2";
      text += fmt::format(
          "  const unsigned char scale = mx_scale<{0}>(peak, "
          "static_cast<ExponentRounding>({1}));\n  const float factor = reciprocal_e8m0(scale);\n"
          "  if (c < kLength) store_codes<{0}>(static_cast<unsigned char*>(p.outputs[{2}]) + "
          "static_cast<long long>(row) * kLength + c, {3}[v], factor);\n",
          element, static_cast<int>(f.rounding), s.output, x);
    }
    body_ +=
        text +
        fmt::format(
            "  if (c < kLength && threadIdx.x % {0} == 0) store_scale<{1}>(static_cast<unsigned "
            "char*>(p.scales[{2}]), row, c / {3}, {4}, scale); }}\n",
            lanes, f.swizzled, s.output, f.block, per_row);
  }

  const FusedRowsAttributes& how_;
  std::span<const DType> types_;
  const FusedTuning& tuning_;
  int64_t length_;
  std::vector<Source> sources_;
  std::set<size_t> read_;  // sources that the body has read or unpacked
  int64_t wide_ = 1, threads_ = 0, vectors_ = 1, pieces_ = 1;
  int64_t resident_threads_ = 0;
  bool prefetch_ = false;
  bool keep_ = true;  // what rows share stays in registers
  int sites_ = 0;     // reductions among a block's threads, each with memory of its own
  bool exchanges_ = false;
  std::string body_;
};

}  // namespace

FusedSource write_fused_source(const FusedRowsAttributes& how, std::span<const DType> input_types,
                               const FusedTuning& tuning) {
  return Writer(how, input_types, tuning).write();
}

}  // namespace halftone::cuda
