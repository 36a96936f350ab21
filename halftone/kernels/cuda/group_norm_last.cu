// GroupNorm of [B, H, W, C], and SiLU behind it where that is asked for. Threads stand side by side
// along the channels and walk the pixels; how many share an item's pixels does not depend on the
// batch. Sums over a group are added in double.
#include <algorithm>

#include "halftone/kernels/cuda/group_norm.cuh"

namespace halftone::cuda {
namespace {

constexpr int kVector = 8;
constexpr int64_t kPixels = 8;  // that a thread adds up at least, where there are as many
// Of a block whose threads have so many channels each.
template <int N>
constexpr int kMostLanes = N == 1 ? 1024 : 640;

// A block: lanes of N channels each, and rows of them that take turns at the pixels.
struct Team {
  int lanes = 0, rows = 0;

  Team(int64_t channels, int width) {
    lanes = static_cast<int>(channels / width);
    rows = std::max(1, kNormThreads / std::max(lanes, 1));
  }
  // Whole warps.
  unsigned threads() const { return static_cast<unsigned>((lanes * rows + 31) / 32 * 32); }
  size_t shared(int64_t channels) const {
    return static_cast<size_t>(rows * channels) * sizeof(float2);
  }
};

bool has_vectors(const Groups& g) {
  return g.channels % kVector == 0 && g.channels / kVector <= kMostLanes<kVector>;
}

// Of an item, whatever the batch.
Groups groups_of(const Shape& shape, int groups) {
  const PictureLayout x(shape, true);
  const Team team(x.channels, x.channels % kVector == 0 ? kVector : 1);
  const int64_t most = std::max<int64_t>(1, x.plane() / (team.rows * kPixels));
  return {x, groups, std::clamp<int64_t>(most, 1, 512)};
}

// [B, parts, H * W / parts, C]
struct Part {
  int64_t first, begin, end;  // where its item lies; its pixels

  __device__ explicit Part(const Groups& g)
      : first(blockIdx.y * g.plane * g.channels),
        begin(g.plane * blockIdx.x / gridDim.x),
        end(g.plane * (blockIdx.x + 1) / gridDim.x) {}
};

// Sums and sums of squares of the part's groups, around the values of the part's first pixel.
template <int N>
__global__ void __launch_bounds__(kMostLanes<N>)
    last_sums_kernel(Input x, Groups g, Team team, double2* sums) {
  extern __shared__ float2 own[];  // [rows, C]
  const Part part(g);
  const int lane = static_cast<int>(threadIdx.x) % team.lanes;
  const int row = static_cast<int>(threadIdx.x) / team.lanes;
  if (row < team.rows) {
    float around[N], sum[N] = {}, squares[N] = {};
    load_values(x.data, x.dtype, part.first + part.begin * g.channels + lane * N, around);
#pragma unroll 4
    for (int64_t p = part.begin + row; p < part.end; p += team.rows) {
      float v[N];
      load_values(x.data, x.dtype, part.first + p * g.channels + lane * N, v);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float difference = v[i] - around[i];
        sum[i] += difference;
        squares[i] = fmaf(difference, difference, squares[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      own[row * g.channels + lane * N + i] = make_float2(sum[i], squares[i]);
    }
  }
  __syncthreads();
  const int64_t of = g.per_group(), pixels = part.end - part.begin;
  const auto warps = static_cast<int64_t>(blockDim.x / 32);
  for (int64_t group = threadIdx.x / 32; group < g.groups; group += warps) {
    double total = 0, total_squares = 0;
    for (int64_t c = threadIdx.x % 32; c < of; c += 32) {
      const int64_t channel = group * of + c;
      double s = 0, q = 0;
      for (int r = 0; r < team.rows; ++r) {
        const float2 of_row = own[r * g.channels + channel];
        s += of_row.x;
        q += of_row.y;
      }
      // sum(x) = n a + s and sum(x^2) = n a^2 + 2 a s + q, for sums s and q around a.
      const double a = load_value(x.data, x.dtype, part.first + part.begin * g.channels + channel);
      const auto n = static_cast<double>(pixels);
      total += n * a + s;
      total_squares += n * a * a + 2 * a * s + q;
    }
    total = warp_sum(total);
    total_squares = warp_sum(total_squares);
    if (threadIdx.x % 32 == 0) {
      sums[(blockIdx.y * g.groups + group) * g.parts + blockIdx.x] =
          make_double2(total, total_squares);
    }
  }
}

// The same of one group by itself, for channels that no team spans.
__global__ void last_group_sums_kernel(Input x, Groups g, double2* sums) {
  const Part part(g);
  const int64_t of = g.per_group();
  double total = 0, squares = 0;
  for (int64_t i = part.begin * of + threadIdx.x; i < part.end * of; i += kNormThreads) {
    const int64_t p = i / of, c = blockIdx.z * of + i - p * of;
    const double v = load_value(x.data, x.dtype, part.first + p * g.channels + c);
    total += v;
    squares += v * v;
  }
  total = team_sum<kNormThreads>(total);
  squares = team_sum<kNormThreads>(squares);
  if (threadIdx.x == 0) {
    sums[(blockIdx.y * g.groups + blockIdx.z) * g.parts + blockIdx.x] =
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

template <int N>
__global__ void __launch_bounds__(kMostLanes<N>)
    last_norm_kernel(LastNorm p, Groups g, Team team, const Moments* moments) {
  const Part part(g);
  const int lane = static_cast<int>(threadIdx.x) % team.lanes;
  const int row = static_cast<int>(threadIdx.x) / team.lanes;
  if (row >= team.rows) return;
  float mean[N], rstd[N], w[N], b[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int64_t c = lane * N + i;
    const Moments m = moments[blockIdx.y * g.groups + c / g.per_group()];
    mean[i] = m.mean;
    rstd[i] = m.rstd;
    w[i] = load_value(p.weight.data, p.weight.dtype, c);
    b[i] = load_value(p.bias.data, p.bias.dtype, c);
  }
#pragma unroll 2
  for (int64_t pixel = part.begin + row; pixel < part.end; pixel += team.rows) {
    const int64_t at = part.first + pixel * g.channels + lane * N;
    float v[N];
    load_values(p.x.data, p.x.dtype, at, v);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      v[i] = activated(p, fmaf((v[i] - mean[i]) * rstd[i], w[i], b[i]));
    }
    store_values(p.y.data, p.y.dtype, at, v);
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

template <int N>
void launch_sums(const Input& x, const Groups& g, double2* sums, cudaStream_t on) {
  const Team team(g.channels, N);
  last_sums_kernel<N>
      <<<grid_of(g, g.parts), team.threads(), team.shared(g.channels), on>>>(x, g, team, sums);
}

void last_moments(const Input& x, const Groups& g, float eps, double2* sums, Moments* moments,
                  cudaStream_t on) {
  if (has_vectors(g) && vectors_of(x, kVector)) {
    launch_sums<kVector>(x, g, sums, on);
  } else if (g.channels <= kMostLanes<1>) {
    launch_sums<1>(x, g, sums, on);
  } else {
    last_group_sums_kernel<<<grid_of(g, g.parts, g.groups), kNormThreads, 0, on>>>(x, g, sums);
  }
  HT_CUDA_LAUNCHED();
  group_moments_kernel<<<blocks_for(g.count * 32, kNormThreads), kNormThreads, 0, on>>>(
      sums, g, eps, moments);
  HT_CUDA_LAUNCHED();
}

// ---- gradient -----------------------------------------------------------------------------------

// A block per part and 32 channels: sums of dy, and of dy z with z the normalized x.
constexpr int kLanes = 32, kRows = kNormThreads / kLanes;

__global__ void last_channel_sums_kernel(GroupNormGrad p, Groups g, float2* partial) {
  __shared__ float2 own[kRows][kLanes];
  const Part part(g);
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
  if (has_vectors(g) && vectors_of(p.x, kVector) && vectors_of(p.y, kVector)) {
    const Team team(g.channels, kVector);
    const int64_t parts = std::clamp<int64_t>(g.plane / (team.rows * 4), 1, 2048);
    last_norm_kernel<kVector><<<grid_of(g, parts), team.threads(), 0, on>>>(p, g, team, moments);
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
  last_channel_sums_kernel<<<grid_of(g, g.parts, slabs), kNormThreads, 0, on>>>(p, g, partial);
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
