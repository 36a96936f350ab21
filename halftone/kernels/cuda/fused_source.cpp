#include "halftone/kernels/cuda/fused_source.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/kernels/cuda/fused_writer.h"

namespace halftone::cuda {
namespace {

constexpr int kWarp = 32;

bool is_power_of_two(int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

}  // namespace

FusedWriter::FusedWriter(const FusedRowsAttributes& how, std::span<const DType> types,
                         const FusedTuning& tuning)
    : how_(how),
      types_(types),
      tuning_(tuning),
      length_(how.length()),
      most_threads_(tuning.most_threads) {
  for (const RowStep& step : how.steps) {
    HT_ASSERT(step.length == length_ || step.output < 0);
    const bool rope = step.function == RowFunction::kRope;
    for (int k = 0; k < operand_count(step.function); ++k) {
      if (step.operands[k] >= static_cast<int>(how.inputs.size())) continue;
      source_of(step.operands[k], rope && k > 0 ? step.width : 0, step.rope.layout);
    }
  }
  choose_vector();
  // What a thread holds of a row's inputs, in vectors: more than this, and more threads share a
  // row.
  constexpr int64_t kMostHeld = 10;
  const bool waits = needs_whole_row();
  const auto held = [&] { return vectors_ * inputs_of_rows(); };
  if (tuning_.most_threads == 0) most_threads_ = joins_pieces() ? 512 : 256;
  choose_threads();
  if (tuning_.most_threads == 0 && waits && held() > kMostHeld) {
    most_threads_ = 512;
    choose_threads();
  }
  // Where threads of a block wait for each other, loading ahead and more rows at a time share the
  // registers: fewer threads than fit, nothing kept, and long rows are not loaded ahead.
  constexpr int64_t kMostAhead = 3;
  const bool ahead = !waits || (vectors_ <= kMostAhead && held() <= kMostHeld && !joins_pieces());
  prefetch_ = tuning.prefetch < 0 ? ahead : tuning.prefetch > 0;
  keep_ = tuning.keep < 0 ? !waits : tuning.keep > 0;
  const int64_t resident = waits && !joins_pieces() ? 768 : 1024;
  resident_threads_ = tuning.resident_threads > 0 ? tuning.resident_threads : resident;
}

FusedSource FusedWriter::write() {
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

int FusedWriter::operand_count(RowFunction function) {
  switch (function) {
    case RowFunction::kAdd:
    case RowFunction::kMul:
    case RowFunction::kSiluMul:
    case RowFunction::kRmsNorm:
    case RowFunction::kConcat:
      return 2;
    case RowFunction::kRope:
    case RowFunction::kRmsNormGrad:
      return 3;
    default:
      return 1;
  }
}

void FusedWriter::choose_vector() {
  const auto fits = [&](int64_t v) {
    if (length_ % v != 0) return false;
    for (size_t i = 0; i < sources_.size(); ++i) {
      const auto& input = input_of(i);
      const int64_t unit = is_half_table(i) ? std::max<int64_t>(v / 2, 1) : v;
      if (input.length % unit != 0 || input.begin % unit != 0 || input.stride % unit != 0 ||
          (input.at > 0 && input.at % unit != 0)) {
        return false;
      }
    }
    return std::all_of(how_.steps.begin(), how_.steps.end(), [&](const RowStep& step) {
      return step.width % v == 0 && step.split % v == 0;
    });
  };
  wide_ = 8;
  while (wide_ > 1 && !fits(wide_)) wide_ /= 2;
}

int64_t FusedWriter::inputs_of_rows() const {
  return std::count_if(how_.inputs.begin(), how_.inputs.end(),
                       [](const auto& input) { return input.source == RowSource::kPerRow; });
}

bool FusedWriter::joins_pieces() const {
  return std::any_of(how_.steps.begin(), how_.steps.end(),
                     [](const RowStep& step) { return step.function == RowFunction::kConcat; });
}

bool FusedWriter::needs_whole_row() const {
  return std::any_of(how_.steps.begin(), how_.steps.end(), [&](const RowStep& step) {
    switch (step.function) {
      case RowFunction::kRmsNorm:
      case RowFunction::kLayerNorm:
      case RowFunction::kRmsNormGrad:
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

bool FusedWriter::is_within_warp(int64_t width) const {
  return is_power_of_two(width / wide_) && width / wide_ <= kWarp;
}

bool FusedWriter::exchanges(const RowStep& step) const {
  return step.rope.layout == RopeLayout::kHalves || wide_ == 1;
}

void FusedWriter::choose_threads() {
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
  vectors_ = (packs + most_threads_ - 1) / most_threads_;
  for (int64_t more = vectors_; more < vectors_ + 4; ++more) {
    if (packs % (more * kWarp) == 0) {
      vectors_ = more;
      break;
    }
  }
  threads_ = up((packs + vectors_ - 1) / vectors_);
}

FusedSource write_fused_source(const FusedRowsAttributes& how, std::span<const DType> input_types,
                               const FusedTuning& tuning) {
  return FusedWriter(how, input_types, tuning).write();
}

}  // namespace halftone::cuda
