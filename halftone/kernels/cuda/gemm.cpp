#include "halftone/kernels/cuda/gemm.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

#include "halftone/base/cache_files.h"

namespace halftone::cuda {
namespace {

// Candidates to measure; more of them find little.
constexpr int kCandidates = 32;

cublasLtMatmulMatrixScale_t scale_mode(GemmScales scales) {
  switch (scales) {
    case GemmScales::kRows:
      return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    case GemmScales::kBlock32:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
    case GemmScales::kBlock16:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
    default:
      return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  }
}

// Split-K and stream-K sum in an order that depends on the number of rows; a row's bits must not.
// The gradient of a weight is a sum over rows anyway, and of an adapter's few columns too little
// work for a GPU unless the rows are divided: its parts are stored and added in one order.
bool may_split(const GemmProblem& problem) { return problem.transpose_a; }

bool sums_in_order(const cublasLtMatmulAlgo_t& algorithm, bool may_split) {
  uint32_t scheme = 0;
  int32_t splits = 0;
  size_t written = 0;
  HT_CUDA(cublaslt().cublasLtMatmulAlgoConfigGetAttribute(
      &algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme, &written));
  HT_CUDA(cublaslt().cublasLtMatmulAlgoConfigGetAttribute(
      &algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits, sizeof splits, &written));
  if (may_split && scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) return true;
  return scheme == CUBLASLT_REDUCTION_SCHEME_NONE && (splits == 0 || splits == 1);
}

}  // namespace

std::string GemmProblem::key() const {
  return fmt::format("{}-{}-{}.{}x{}x{}.{}{}.s{}{}{}{}{}{}.{}-{}-{}", static_cast<int>(a_type),
                     static_cast<int>(b_type), static_cast<int>(y_type), m, n, k,
                     transpose_a ? 't' : 'n', transpose_b ? 't' : 'n', static_cast<int>(scales),
                     bias ? "b" : "", gelu ? "g" : "", add ? "+" : "", alpha ? "a" : "",
                     fast_accumulation ? "f" : "", a_stride, b_stride, y_stride);
}

// cuBLASLt is column-major: it computes Y^T = op(b)^T op(a)^T, its A being our b.
class Gemms::Descriptors {
 public:
  Descriptors(const GemmProblem& p, const GemmPointers& pointers) {
    HT_CUDA(cublaslt().cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p.alpha) set(CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_DEVICE);
    if (p.fast_accumulation) set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
    if (p.scales != GemmScales::kNone) {
      set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, pointers.b_scales);
      set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, pointers.a_scales);
      set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(p.scales));
      set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(p.scales));
    }
    if (p.bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE,
          p.gelu ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, pointers.bias);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, p.y_type);
    } else if (p.gelu) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_GELU);
    }
    a_ = layout(p.b_type, p.transpose_b ? p.k : p.n, p.transpose_b ? p.n : p.k, p.b_stride);
    b_ = layout(p.a_type, p.transpose_a ? p.m : p.k, p.transpose_a ? p.k : p.m, p.a_stride);
    y_ = layout(p.y_type, p.n, p.m, p.y_stride);
    alpha_on_device_ = p.alpha;
    adds_ = p.add;
  }
  ~Descriptors() {
    for (const cublasLtMatrixLayout_t made : {a_, b_, y_}) {
      if (made != nullptr) cublaslt().cublasLtMatrixLayoutDestroy(made);
    }
    if (operation_ != nullptr) cublaslt().cublasLtMatmulDescDestroy(operation_);
  }
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;

  cublasLtMatmulDesc_t operation() const { return operation_; }
  cublasLtMatrixLayout_t a() const { return a_; }
  cublasLtMatrixLayout_t b() const { return b_; }
  cublasLtMatrixLayout_t y() const { return y_; }
  bool alpha_on_device() const { return alpha_on_device_; }
  bool adds() const { return adds_; }

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    HT_CUDA(cublaslt().cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof value));
  }
  static cublasLtMatrixLayout_t layout(cudaDataType_t type, int64_t rows, int64_t columns,
                                       int64_t stride) {
    cublasLtMatrixLayout_t made = nullptr;
    HT_CUDA(cublaslt().cublasLtMatrixLayoutCreate(&made, type, static_cast<uint64_t>(rows),
                                                  static_cast<uint64_t>(columns),
                                                  stride > 0 ? stride : rows));
    return made;
  }

  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, y_ = nullptr;
  bool alpha_on_device_ = false, adds_ = false;
};

Gemms::Gemms(Context& context) : context_(context) {
  HT_CUDA(cublaslt().cublasLtCreate(&handle_));
  constexpr std::array<float, 2> kOneAndZero = {1, 0};
  HT_CUDA(cudaMalloc(&one_, sizeof kOneAndZero));
  HT_CUDA(cudaMemcpy(one_, kOneAndZero.data(), sizeof kOneAndZero, cudaMemcpyHostToDevice));
  load();
}

Gemms::~Gemms() {
  if (changed_) save();
  cudaFree(one_);
  cublaslt().cublasLtDestroy(handle_);
}

cublasStatus_t Gemms::launch(const Descriptors& d, const GemmPointers& p,
                             const cublasLtMatmulAlgo_t& algorithm, std::byte* workspace) const {
  constexpr float kOne = 1, kZero = 0;
  const void* alpha = d.alpha_on_device() ? static_cast<const void*>(p.alpha) : &kOne;
  const float* here = d.adds() ? &kOne : &kZero;
  const float* there = d.adds() ? one_ : one_ + 1;
  const void* beta = d.alpha_on_device() ? there : here;
  const void* addend = d.adds() ? p.addend : p.y;
  return cublaslt().cublasLtMatmul(handle_, d.operation(), alpha, p.b, d.a(), p.a, d.b(), beta,
                                   addend, d.y(), p.y, d.y(), &algorithm, workspace,
                                   kWorkspaceBytes, context_.stream());
}

void Gemms::run(const GemmProblem& problem, const GemmPointers& pointers, std::byte* workspace) {
  HT_ASSERT(problem.add == (pointers.addend != nullptr));
  if (problem.m == 0 || problem.n == 0) return;
  if (problem.item_rows > 0 && problem.item_rows < problem.m) {
    return run_items(problem, pointers, workspace);
  }
  const Descriptors descriptors(problem, pointers);
  const cublasLtMatmulAlgo_t& chosen = algorithm(problem, descriptors, pointers, workspace);
  check(launch(descriptors, pointers, chosen, workspace), "cublasLtMatmul");
}

bool Gemms::runs(const Descriptors& d, const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t checked{};
  const cublasStatus_t status = cublaslt().cublasLtMatmulAlgoCheck(
      handle_, d.operation(), d.a(), d.b(), d.y(), d.y(), &algorithm, &checked);
  return status == CUBLAS_STATUS_SUCCESS && checked.workspaceSize <= kWorkspaceBytes;
}

// All at once where the algorithm takes so many rows, otherwise one after the other.
void Gemms::run_items(const GemmProblem& problem, GemmPointers at, std::byte* workspace) {
  HT_ASSERT(problem.scales == GemmScales::kNone && !problem.transpose_a &&
            problem.m % problem.item_rows == 0);
  HT_ASSERT(problem.a_stride == 0 && problem.y_stride == 0);
  GemmProblem one = problem;
  one.m = problem.item_rows;
  one.item_rows = 0;
  const Descriptors alone(one, at);
  const cublasLtMatmulAlgo_t& chosen = algorithm(one, alone, at, workspace);
  const Descriptors all(problem, at);
  if (runs(all, chosen)) {
    return check(launch(all, at, chosen, workspace), "cublasLtMatmul");
  }
  const auto bytes = [](cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; };
  const auto next = [](const void* data, int64_t size) {
    return data == nullptr ? nullptr : static_cast<const std::byte*>(data) + size;
  };
  for (int64_t row = 0; row < problem.m; row += one.m) {
    check(launch(alone, at, chosen, workspace), "cublasLtMatmul");
    at.a = next(at.a, one.m * one.k * bytes(one.a_type));
    at.addend = next(at.addend, one.m * one.n * bytes(one.y_type));
    at.y = static_cast<std::byte*>(at.y) + one.m * one.n * bytes(one.y_type);
  }
}

const cublasLtMatmulAlgo_t& Gemms::algorithm(const GemmProblem& problem,
                                             const Descriptors& descriptors,
                                             const GemmPointers& pointers, std::byte* workspace) {
  const std::string key = (context_.deterministic() ? "first." : "") + problem.key();
  if (const auto found = chosen_.find(key); found != chosen_.end()) return found->second;
  changed_ = true;
  return chosen_.emplace(key, measure_beside(problem, descriptors, pointers, workspace))
      .first->second;
}

// Runs that are measured write to y: where that is the addend too, what was there is put back.
cublasLtMatmulAlgo_t Gemms::measure_beside(const GemmProblem& problem, const Descriptors& d,
                                           const GemmPointers& pointers, std::byte* workspace) {
  const bool in_place = problem.add && pointers.addend == pointers.y;
  if (!in_place || context_.recording() || context_.deterministic()) {
    return measure(problem, d, pointers, workspace);
  }
  HT_ASSERT(problem.y_stride == 0);
  const size_t bytes = static_cast<size_t>(problem.m * problem.n) *
                       (problem.y_type == CUDA_R_32F ? sizeof(float) : sizeof(bf16));
  GemmPointers apart = pointers;
  void* kept = nullptr;
  HT_CUDA(cudaMalloc(&kept, bytes));
  apart.addend = kept;
  const auto copy = [&](void* to, const void* from) {
    HT_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, context_.stream()));
  };
  copy(kept, pointers.y);
  std::optional<cublasLtMatmulAlgo_t> chosen;
  try {
    chosen = measure(problem, d, apart, workspace);
  } catch (...) {
    cudaFree(kept);
    throw;
  }
  copy(pointers.y, kept);
  cudaFree(kept);
  return *chosen;
}

// What the heuristic proposes.
std::vector<cublasLtMatmulAlgo_t> Gemms::proposed(const GemmProblem& problem,
                                                  const Descriptors& d) const {
  cublasLtMatmulPreference_t preference = nullptr;
  HT_CUDA(cublaslt().cublasLtMatmulPreferenceCreate(&preference));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    HT_CUDA(cublaslt().cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value,
                                                            sizeof value));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      uint32_t{may_split(problem) ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                  : CUBLASLT_REDUCTION_SCHEME_NONE});
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> found{};
  int count = 0;
  const cublasStatus_t status =
      cublaslt().cublasLtMatmulAlgoGetHeuristic(handle_, d.operation(), d.a(), d.b(), d.y(), d.y(),
                                                preference, kCandidates, found.data(), &count);
  cublaslt().cublasLtMatmulPreferenceDestroy(preference);
  std::vector<cublasLtMatmulAlgo_t> result;
  for (int i = 0; i < count && status == CUBLAS_STATUS_SUCCESS; ++i) {
    const cublasLtMatmulAlgo_t& algorithm = found[i].algo;
    if (found[i].state == CUBLAS_STATUS_SUCCESS && sums_in_order(algorithm, may_split(problem))) {
      result.push_back(algorithm);
    }
  }
  return result;
}

// For scales by row the heuristic knows one algorithm, and none for few rows of many columns with a
// bias; those for scales by tensor run there too.
std::vector<cublasLtMatmulAlgo_t> Gemms::candidates_of(const GemmProblem& problem,
                                                       const Descriptors& d,
                                                       const GemmPointers& pointers) const {
  std::vector<cublasLtMatmulAlgo_t> candidates = proposed(problem, d);
  if (problem.scales == GemmScales::kRows) {
    GemmProblem by_tensor = problem;
    by_tensor.scales = GemmScales::kScalar;
    for (const auto& algorithm : proposed(by_tensor, Descriptors(by_tensor, pointers))) {
      if (runs(d, algorithm)) candidates.push_back(algorithm);
    }
  }
  if (candidates.empty()) {
    throw Error(ErrorCode::kUnsupported, "cuBLASLt", "no algorithm for the product {}",
                problem.key());
  }
  return candidates;
}

// The fastest candidate by its best of a few runs. Nothing can be measured while launches are
// recorded, and nothing may be where every run is to be the same: then it is the heuristic's first.
cublasLtMatmulAlgo_t Gemms::measure(const GemmProblem& problem, const Descriptors& d,
                                    const GemmPointers& pointers, std::byte* workspace) {
  const std::vector<cublasLtMatmulAlgo_t> candidates = candidates_of(problem, d, pointers);
  ++measured_;
  struct Timed {
    double seconds;
    const cublasLtMatmulAlgo_t* algorithm;
  };
  const auto time = [&](const cublasLtMatmulAlgo_t& algorithm, int runs) {
    context_.mark();
    for (int run = 0; run < runs; ++run) {
      check(launch(d, pointers, algorithm, workspace), "cublasLtMatmul");
    }
    return context_.mark() / runs;
  };
  std::vector<Timed> timed;
  for (const cublasLtMatmulAlgo_t& algorithm : candidates) {
    if (context_.recording() || context_.deterministic()) return algorithm;
    if (launch(d, pointers, algorithm, workspace) != CUBLAS_STATUS_SUCCESS) continue;
    timed.push_back({time(algorithm, 3), &algorithm});
  }
  if (timed.empty()) {
    throw Error(ErrorCode::kUnsupported, "cuBLASLt", "no algorithm runs the product {}",
                problem.key());
  }
  const auto faster = [](const Timed& a, const Timed& b) { return a.seconds < b.seconds; };
  std::sort(timed.begin(), timed.end(), faster);
  // A GPU that works without pause slows down to keep its power limit, and then another algorithm
  // may be the fastest: the best few are measured again under load, in turn.
  constexpr size_t kFinalists = 5;
  constexpr double kClose = 1.10, kLoad = 0.012, kWorthwhile = 50e-6;
  std::erase_if(timed,
                [limit = timed[0].seconds * kClose](const Timed& t) { return t.seconds > limit; });
  timed.resize(std::min(timed.size(), kFinalists));
  if (timed.size() == 1 || timed[0].seconds < kWorthwhile) return *timed[0].algorithm;
  const int runs = std::clamp(static_cast<int>(kLoad / timed[0].seconds), 3, 200);
  time(*timed[0].algorithm, 2 * runs);
  for (Timed& t : timed) t.seconds = 0;
  for (int round = 0; round < 2; ++round) {
    for (Timed& t : timed) t.seconds += time(*t.algorithm, runs);
  }
  return *std::min_element(timed.begin(), timed.end(), faster)->algorithm;
}

// A line per problem: its key and the algorithm's bytes. Other GPUs and versions of cuBLASLt have
// files of their own.
void Gemms::load() {
  const std::string folder = cache_folder();
  if (folder.empty()) return;
  file_ = fmt::format("{}/gemm-sm{}-{}-cublaslt{}.txt", folder, context_.capability(),
                      context_.multiprocessors(), cublaslt().cublasLtGetVersion());
  std::ifstream in(file_);
  std::string key, hex;
  while (in >> key >> hex) {
    cublasLtMatmulAlgo_t algorithm{};
    if (hex.size() != 2 * sizeof algorithm) continue;
    std::array<unsigned char, sizeof algorithm> bytes{};
    bool valid = true;
    for (size_t i = 0; i < bytes.size(); ++i) {
      char* end = nullptr;
      const std::string digits = hex.substr(2 * i, 2);
      bytes[i] = static_cast<unsigned char>(std::strtoul(digits.c_str(), &end, 16));
      valid = valid && *end == '\0';
    }
    if (!valid) continue;
    std::memcpy(&algorithm, bytes.data(), sizeof algorithm);
    chosen_[key] = algorithm;
  }
}

void Gemms::save() const {
  if (file_.empty()) return;
  std::string lines;
  for (const auto& [key, algorithm] : chosen_) {
    std::array<unsigned char, sizeof algorithm> bytes{};
    std::memcpy(bytes.data(), &algorithm, sizeof algorithm);
    lines += fmt::format("{} {:02x}\n", key, fmt::join(bytes, ""));
  }
  write_cache_file(file_, lines);
}

}  // namespace halftone::cuda
