// Steps of a chain in registers, each rounded where the unfused graph stores, and their stores.
#include "halftone/kernels/cuda/fused_writer.h"

namespace halftone::cuda {
namespace {

const char* function_name(Function function) {
  switch (function) {
    case Function::kTanh:
      return "tanhf";
    case Function::kSigmoid:
      return "sigmoid";
    case Function::kSilu:
      return "silu";
    case Function::kGelu:
      return "gelu";
    case Function::kQuickGelu:
      return "quick_gelu";
    case Function::kErfGelu:
      return "erf_gelu";
    case Function::kErfGeluSlope:
      return "erf_gelu_slope";
    case Function::kSin:
      return "sinf";
    case Function::kCos:
      return "cosf";
  }
  return "";
}

}  // namespace

void FusedWriter::each(size_t index, const std::string& expression) {
  body_ += fmt::format(
      "  #pragma unroll\n  for (int v = 0; v < kVectors; ++v) {{\n  #pragma unroll\n"
      "  for (int i = 0; i < kWide; ++i) step{}[v][i] = {};\n  }}\n",
      index, expression);
}

void FusedWriter::write_step(size_t index) {
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
    case RowFunction::kRmsNormGrad:
      write_rms_norm_grad(s, index);
      break;
    case RowFunction::kRope:
      write_rope(s, index);
      break;
    case RowFunction::kConcat:
      each(index, fmt::format("first + v * (kThreads * kWide) < {} ? {} : {}", s.split, a, b));
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

void FusedWriter::write_total(const RowStep& s, const std::string& name, const std::string& term) {
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

void FusedWriter::write_mean(const RowStep& s, const std::string& x, size_t index) {
  write_total(s, fmt::format("mean{}", index), fmt::format("part += {}[v][i];", x));
  body_ +=
      fmt::format("  #pragma unroll\n  for (int v = 0; v < kVectors; ++v) mean{}[v] *= {:a}f;\n",
                  index, 1.0f / static_cast<float>(s.width));
}

void FusedWriter::write_moment(const RowStep& s, const std::string& x, const std::string& mean,
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

// dx = rstd (w dy - x rstd^2 mean(dy w x))
void FusedWriter::write_rms_norm_grad(const RowStep& s, size_t index) {
  const std::string dy = operand(s, 0), x = operand(s, 1), weight = operand(s, 2);
  write_moment(s, x, "", "rstd", index);
  write_total(s, fmt::format("along{}", index),
              fmt::format("part = fmaf({}[v][i] * {}[v][i], {}[v][i], part);", dy, weight, x));
  body_ += fmt::format(
      "  #pragma unroll\n  for (int v = 0; v < kVectors; ++v) along{0}[v] *= {1:a}f * rstd{0}[v] * "
      "rstd{0}[v];\n",
      index, 1.0f / static_cast<float>(s.width));
  each(index, fmt::format("rstd{0}[v] * ({1}[v][i] * {3}[v][i] - {2}[v][i] * along{0}[v])", index,
                          dy, x, weight));
}

void FusedWriter::write_rope(const RowStep& s, size_t index) {
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

}  // namespace halftone::cuda
