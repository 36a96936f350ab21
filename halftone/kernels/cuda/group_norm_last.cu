// GroupNorm of [B, H, W, C], and SiLU behind it where that is asked for. Threads stand side by side
// along the channels and walk the pixels; how many share an item's pixels does not depend on the
// batch. Sums over a group are added in double.
#include <algorithm>

#include "halftone/kernels/cuda/group_norm.cuh"

namespace halftone::cuda {
namespace {

constexpr int kVector = 8;
constexpr int64_t kPixels = 8;   // that a thread takes, where there are as many
constexpr int64_t kParts = 256;  // of an item's pixels, at most, whose sums are kept
// Of a block whose threads have so many channels each.
template <int N>
constexpr int kMostLanes = N == 1 ? 1024 : 512;

// A block: lanes of N channels each, and rows of them that take turns at the pixels. Divisions are
// made here: those of 64 bits cost a thread more than its pixels do.
struct Team {
  int lanes = 0, rows = 0, channels = 0, per_group = 0, groups = 0;
  int64_t plane = 0;
  int64_t chunk = 0;  // pixels of a block
  int parts = 0;      // blocks that share the pixels of an item

  Team(const Groups& g, int width, int64_t wanted_parts)
      : lanes(static_cast<int>(g.channels / width)),
        rows(std::max(1, kNormThreads / std::max(lanes, 1))),
        channels(static_cast<int>(g.channels)),
        per_group(static_cast<int>(g.per_group())),
        groups(static_cast<int>(g.groups)),
        plane(g.plane) {
    const int64_t most = std::clamp<int64_t>(wanted_parts, 1, std::max<int64_t>(g.plane, 1));
    chunk = (g.plane + most - 1) / most;
    parts = static_cast<int>((g.plane + chunk - 1) / chunk);
  }
  // Whole warps.
  unsigned threads() const { return static_cast<unsigned>((lanes * rows + 31) / 32 * 32); }
  size_t shared() const {
    return static_cast<size_t>(channels) *
           (static_cast<size_t>(rows) * sizeof(float2) + sizeof(float));
  }
};

bool has_vectors(const Groups& g) {
  return g.channels % kVector == 0 && g.channels / kVector <= kMostLanes<kVector>;
}

// Of an item, whatever the batch.
Groups groups_of(const Shape& shape, int groups) {
  const PictureLayout x(shape, true);
  Groups g(x, groups, 1);
  if (g.numel() == 0) return g;
  const int width = has_vectors(g) ? kVector : 1;
  const int64_t lanes = g.channels / width;
  const int64_t rows = std::max<int64_t>(1, kNormThreads / lanes);
  g.parts = Team(g, width, std::clamp<int64_t>(g.plane / (rows * kPixels), 1, kParts)).parts;
  return g;
}

// The pixels of a block: [B, parts, chunk, C]
struct Part {
  int64_t first, begin, end;  // where its item lies; its pixels

  __device__ explicit Part(const Team& t)
      : first(blockIdx.y * t.plane * t.channels),
        begin(blockIdx.x * t.chunk),
        end(min(t.plane, begin + t.chunk)) {}
};

// One value, or several of them.
template <int N, class T>
__device__ void load_from(const T* x, int64_t at, float (&v)[N]) {
  if constexpr (N == 1) {
    v[0] = to_float(x[at]);
  } else {
    load_values(x + at, v);
  }
}
template <>
__device__ void load_from<1, float>(const float* x, int64_t at, float (&v)[1]) {
  v[0] = x[at];
}

// Sums and sums of squares of the part's groups, around the values of the part's first pixel.
template <int N, class T>
__global__ void __launch_bounds__(kMostLanes<N>)
    last_sums_kernel(const T* x, Team t, double2* sums) {
  extern __shared__ float2 own[];  // [rows, C], and what is in the middle of them [C]
  float* middle = reinterpret_cast<float*>(own + t.rows * t.channels);
  const Part part(t);
  const int lane = static_cast<int>(threadIdx.x) % t.lanes;
  const int row = static_cast<int>(threadIdx.x) / t.lanes;
  if (row < t.rows) {
    float around[N], sum[N] = {}, squares[N] = {};
    load_from(x, part.first + part.begin * t.channels + lane * N, around);
#pragma unroll 4
    for (int64_t p = part.begin + row; p < part.end; p += t.rows) {
      float v[N];
      load_from(x, part.first + p * t.channels + lane * N, v);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float difference = v[i] - around[i];
        sum[i] += difference;
        squares[i] = fmaf(difference, difference, squares[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      own[row * t.channels + lane * N + i] = make_float2(sum[i], squares[i]);
      if (row == 0) middle[lane * N + i] = around[i];
    }
  }
  __syncthreads();
  const auto n = static_cast<double>(part.end - part.begin);
  const int warps = static_cast<int>(blockDim.x) / 32;
  for (int group = static_cast<int>(threadIdx.x) / 32; group < t.groups; group += warps) {
    double total = 0, total_squares = 0;
    for (int c = static_cast<int>(threadIdx.x) % 32; c < t.per_group; c += 32) {
      const int channel = group * t.per_group + c;
      double s = 0, q = 0;
      for (int r = 0; r < t.rows; ++r) {
        const float2 of_row = own[r * t.channels + channel];
        s += of_row.x;
        q += of_row.y;
      }
      // sum(x) = n a + s and sum(x^2) = n a^2 + 2 a s + q, for sums s and q around a.
      const double a = middle[channel];
      total += n * a + s;
      total_squares += n * a * a + 2 * a * s + q;
    }
    total = warp_sum(total);
    total_squares = warp_sum(total_squares);
    if (threadIdx.x % 32 == 0) {
      sums[(int64_t{blockIdx.y} * t.groups + group) * t.parts + blockIdx.x] =
          make_double2(total, total_squares);
    }
  }
}

// The same of one group by itself, for channels that no team spans, and other types.
__global__ void last_group_sums_kernel(Input x, Team t, double2* sums) {
  const Part part(t);
  double total = 0, squares = 0;
  for (int64_t i = part.begin * t.per_group + threadIdx.x; i < part.end * t.per_group;
       i += kNormThreads) {
    const int64_t p = divide(i, t.per_group), c = blockIdx.z * t.per_group + i - p * t.per_group;
    const double v = load_value(x.data, x.dtype, part.first + p * t.channels + c);
    total += v;
    squares += v * v;
  }
  total = team_sum<kNormThreads>(total);
  squares = team_sum<kNormThreads>(squares);
  if (threadIdx.x == 0) {
    sums[(int64_t{blockIdx.y} * t.groups + blockIdx.z) * t.parts + blockIdx.x] =
        make_double2(total, squares);
  }
}

struct LastNorm {
  Input x, weight, bias;
  Output y;
  bool silu;
};

__device__ float activated(const LastNorm& p, float y) {
  if (!p.silu) return y;
  if (p.y.dtype == DType::kBF16) y = to_float(to_bf16(y));  // as it would have been stored
  return y / (1.0f + expf(-y));
}

template <class T>
__global__ void __launch_bounds__(kMostLanes<kVector>)
    last_norm_kernel(LastNorm p, Team t, const Moments* moments) {
  const Part part(t);
  const int lane = static_cast<int>(threadIdx.x) % t.lanes;
  const int row = static_cast<int>(threadIdx.x) / t.lanes;
  if (row >= t.rows) return;
  float mean[kVector], rstd[kVector], w[kVector], b[kVector];
  load_values(p.weight.data, p.weight.dtype, lane * kVector, w);
  load_values(p.bias.data, p.bias.dtype, lane * kVector, b);
  int group = lane * kVector / t.per_group, within = lane * kVector - group * t.per_group;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const Moments m = moments[int64_t{blockIdx.y} * t.groups + group];
    mean[i] = m.mean;
    rstd[i] = m.rstd;
    if (++within == t.per_group) {
      within = 0;
      ++group;
    }
  }
  const T* x = static_cast<const T*>(p.x.data);
  T* y = static_cast<T*>(p.y.data);
#pragma unroll 4
  for (int64_t pixel = part.begin + row; pixel < part.end; pixel += t.rows) {
    const int64_t at = part.first + pixel * t.channels + lane * kVector;
    float v[kVector];
    load_values(x + at, v);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      v[i] = activated(p, fmaf((v[i] - mean[i]) * rstd[i], w[i], b[i]));
    }
    store_values(y + at, v);
  }
}

__global__ void last_norm_plain_kernel(LastNorm p, Groups g, const Moments* moments) {
  const int64_t at = thread_index();
  if (at >= g.numel()) return;
  const int64_t pixel = divide(at, g.channels), c = at - pixel * g.channels;
  const Moments m = moments[pixel / g.plane * g.groups + c / g.per_group()];
  const float w = load_value(p.weight.data, p.weight.dtype, c);
  const float b = load_value(p.bias.data, p.bias.dtype, c);
  const float x = load_value(p.x.data, p.x.dtype, at);
  store_value(p.y.data, p.y.dtype, at, activated(p, fmaf((x - m.mean) * m.rstd, w, b)));
}

dim3 grid_of(const Groups& g, int64_t parts, int64_t layers = 1) {
  return {static_cast<unsigned>(parts), static_cast<unsigned>(g.count / g.groups),
          static_cast<unsigned>(layers)};
}

template <int N, class T>
void launch_sums(const Input& x, const Groups& g, double2* sums, cudaStream_t on) {
  const Team team(g, N, g.parts);
  last_sums_kernel<N, T><<<grid_of(g, team.parts), team.threads(), team.shared(), on>>>(
      static_cast<const T*>(x.data), team, sums);
}

// Of a type that kernels are compiled for.
bool is_common(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF32; }

void last_moments(const Input& x, const Groups& g, float eps, double2* sums, Moments* moments,
                  cudaStream_t on) {
  const bool bf16_values = x.dtype == DType::kBF16;
  if (is_common(x.dtype) && has_vectors(g) && vectors_of(x, kVector)) {
    bf16_values ? launch_sums<kVector, bf16>(x, g, sums, on)
                : launch_sums<kVector, float>(x, g, sums, on);
  } else if (is_common(x.dtype) && g.channels <= kMostLanes<1>) {
    bf16_values ? launch_sums<1, bf16>(x, g, sums, on) : launch_sums<1, float>(x, g, sums, on);
  } else {
    const Team team(g, 1, g.parts);
    last_group_sums_kernel<<<grid_of(g, team.parts, g.groups), kNormThreads, 0, on>>>(x, team,
                                                                                      sums);
  }
  HT_CUDA_LAUNCHED();
  group_moments_kernel<<<blocks_for(g.count * 32, kNormThreads), kNormThreads, 0, on>>>(
      sums, g, eps, moments);
  HT_CUDA_LAUNCHED();
}

// ---- gradient -----------------------------------------------------------------------------------

// A block per part and 32 channels: sums of dy, and of dy z with z the normalized x.
constexpr int kLanes = 32, kRows = kNormThreads / kLanes;

__global__ void last_channel_sums_kernel(GroupNormGrad p, Groups g, Team t, float2* partial) {
  __shared__ float2 own[kRows][kLanes];
  const Part part(t);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int row = static_cast<int>(threadIdx.x) / kLanes;
  const int64_t c = int64_t{blockIdx.z} * kLanes + lane;
  float sum = 0, dot = 0;
  if (c < g.channels) {
    const Moments m = p.moments[blockIdx.y * g.groups + c / g.per_group()];
    for (int64_t pixel = part.begin + row; pixel < part.end; pixel += kRows) {
      const int64_t at = part.first + pixel * g.channels + c;
      const float dy = load_value(p.dy.data, p.dy.dtype, at);
      sum += dy;
      dot = fmaf(dy, (load_value(p.x.data, p.x.dtype, at) - m.mean) * m.rstd, dot);
    }
  }
  own[row][lane] = make_float2(sum, dot);
  __syncthreads();
  if (row > 0 || c >= g.channels) return;
  for (int r = 1; r < kRows; ++r) {
    sum += own[r][lane].x;
    dot += own[r][lane].y;
  }
  partial[(int64_t{blockIdx.y} * g.parts + blockIdx.x) * g.channels + c] = make_float2(sum, dot);
}

__global__ void last_planes_kernel(GroupNormGrad p, Groups g, const float2* partial) {
  const int64_t index = thread_index();  // of [B, C]
  if (index >= g.count / g.groups * g.channels) return;
  const int64_t b = index / g.channels, c = index - b * g.channels;
  float sum = 0, dot = 0;
  for (int64_t part = 0; part < g.parts; ++part) {
    const float2 of_part = partial[(b * g.parts + part) * g.channels + c];
    sum += of_part.x;
    dot += of_part.y;
  }
  p.planes[index] = make_float2(sum, dot);
}

__global__ void last_dx_kernel(GroupNormGrad p, Groups g) {
  const int64_t at = thread_index();
  if (at >= g.numel()) return;
  const int64_t pixel = divide(at, g.channels), c = at - pixel * g.channels;
  const int64_t group = pixel / g.plane * g.groups + c / g.per_group();
  const Moments m = p.moments[group];
  const float2 terms = p.group_terms[group];
  const float w = load_value(p.weight.data, p.weight.dtype, c);
  const float z = (load_value(p.x.data, p.x.dtype, at) - m.mean) * m.rstd;
  const float dz = load_value(p.dy.data, p.dy.dtype, at) * w;
  const float dx = m.rstd * (dz - fmaf(z, terms.y, terms.x) / static_cast<float>(g.size));
  store_value(p.dx.data, p.dx.dtype, at, dx);
}

}  // namespace

int64_t group_norm_last_workspace(const NormArgs& args) {
  return moments_bytes(groups_of(args.x.shape, args.how.groups));
}

void group_norm_last(const NormArgs& args, Stream stream) {
  const Groups g = groups_of(args.x.shape, args.how.groups);
  if (g.numel() == 0) return;
  const LastNorm p{input_of(args.x), input_of(args.weight), input_of(args.bias), output_of(args.y),
                   args.how.silu};
  const auto on = context_of(stream).stream();
  Workspace workspace(stream);
  auto* sums = reinterpret_cast<double2*>(workspace.bytes(g.count * g.parts * 16));
  auto* moments = reinterpret_cast<Moments*>(workspace.bytes(g.count * 8));
  last_moments(p.x, g, args.how.eps, sums, moments, on);
  const bool vectors = has_vectors(g) && is_common(p.x.dtype) && p.x.dtype == p.y.dtype &&
                       vectors_of(p.x, kVector) && vectors_of(p.y, kVector) &&
                       vectors_of(p.weight, kVector) && vectors_of(p.bias, kVector);
  if (vectors) {
    // As few pixels for a thread as it takes to keep a large GPU busy.
    const Team team = [&] {
      constexpr int64_t kBlocks = 264;
      const int64_t turns = Team(g, kVector, 1).rows;
      const int64_t full = g.plane / (turns * kPixels), least = std::min(g.plane / turns, kBlocks);
      return Team(g, kVector, std::max(full, least));
    }();
    const auto kernel =
        p.x.dtype == DType::kBF16 ? last_norm_kernel<bf16> : last_norm_kernel<float>;
    kernel<<<grid_of(g, team.parts), team.threads(), 0, on>>>(p, team, moments);
  } else {
    last_norm_plain_kernel<<<blocks_for(g.numel(), kNormThreads), kNormThreads, 0, on>>>(p, g,
                                                                                         moments);
  }
  HT_CUDA_LAUNCHED();
}

int64_t group_norm_last_grad_workspace(const NormGradArgs& args) {
  const Groups g = groups_of(args.x.shape, args.how.groups);
  const int64_t planes = args.x.shape[0] * g.channels;
  return moments_bytes(g) + aligned_bytes(planes * 8) + aligned_bytes(g.count * 8) +
         aligned_bytes(planes * g.parts * 8);
}

void group_norm_last_grad(const NormGradArgs& args, Stream stream) {
  const Groups g = groups_of(args.x.shape, args.how.groups);
  const auto on = context_of(stream).stream();
  if (g.numel() == 0) {
    for (const View* y : {&args.dweight, &args.dbias}) {
      const int64_t bytes = y->data == nullptr ? 0 : y->shape.numel() * size_of(y->dtype);
      if (bytes > 0) HT_CUDA(cudaMemsetAsync(y->data, 0, static_cast<size_t>(bytes), on));
    }
    return;
  }
  const int64_t planes = args.x.shape[0] * g.channels;
  Workspace workspace(stream);
  auto* sums = reinterpret_cast<double2*>(workspace.bytes(g.count * g.parts * 16));
  auto* moments = reinterpret_cast<Moments*>(workspace.bytes(g.count * 8));
  const GroupNormGrad p{input_of(args.dy),
                        input_of(args.x),
                        input_of(args.weight),
                        output_of(args.dx),
                        output_of(args.dweight),
                        output_of(args.dbias),
                        moments,
                        reinterpret_cast<float2*>(workspace.bytes(planes * 8)),
                        reinterpret_cast<float2*>(workspace.bytes(g.count * 8))};
  auto* partial = reinterpret_cast<float2*>(workspace.bytes(planes * g.parts * 8));
  last_moments(p.x, g, args.how.eps, sums, moments, on);
  const int64_t slabs = (g.channels + kLanes - 1) / kLanes;
  last_channel_sums_kernel<<<grid_of(g, g.parts, slabs), kNormThreads, 0, on>>>(
      p, g, Team(g, 1, g.parts), partial);
  HT_CUDA_LAUNCHED();
  last_planes_kernel<<<blocks_for(planes, kNormThreads), kNormThreads, 0, on>>>(p, g, partial);
  HT_CUDA_LAUNCHED();
  group_terms_kernel<<<blocks_for(g.channels + g.count, kNormThreads), kNormThreads, 0, on>>>(p, g);
  HT_CUDA_LAUNCHED();
  if (p.dx.data == nullptr) return;
  last_dx_kernel<<<blocks_for(g.numel(), kNormThreads), kNormThreads, 0, on>>>(p, g);
  HT_CUDA_LAUNCHED();
}

}  // namespace halftone::cuda
