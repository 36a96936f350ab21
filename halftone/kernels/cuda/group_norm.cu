// GroupNorm of [B, C, H, W]: a group is one run of memory, cut into parts whose moments are added
// in double, so that neither a large mean nor a large picture costs accuracy.
#include <algorithm>

#include "halftone/kernels/cuda/group_norm.cuh"

namespace halftone::cuda {
namespace {

Groups groups_of(const Shape& shape, int groups) {
  const PictureLayout x(shape, false);
  const int64_t count = x.batch * groups, size = x.channels / groups * x.plane();
  // Enough blocks for a large GPU, but no less than a few loads for each thread.
  const int64_t wanted = count > 0 ? (2048 + count - 1) / count : 1;
  return {x, groups,
          std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, size / (kNormThreads * 32)))};
}

// Sum and sum of squares of one part of a group. Each thread sums around its own first value.
template <int N>
__global__ void group_sums_kernel(Input x, Groups g, double2* sums) {
  const int64_t group = divide(blockIdx.x, g.parts), part = blockIdx.x - group * g.parts;
  const int64_t chunks = g.size / N;
  const int64_t begin = chunks * part / g.parts, end = chunks * (part + 1) / g.parts;
  float around = 0, sum = 0, squares = 0;
  int count = 0;
  for (int64_t chunk = begin + threadIdx.x; chunk < end; chunk += kNormThreads) {
    float v[N];
    load_values(x.data, x.dtype, group * g.size + chunk * N, v);
    if (count == 0) around = v[0];
    count += N;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float difference = v[i] - around;
      sum += difference;
      squares = fmaf(difference, difference, squares);
    }
  }
  // sum(x) = n a + s and sum(x^2) = n a^2 + 2 a s + q, for sums s and q around a.
  const double a = around, n = count, s = sum;
  const double total = team_sum<kNormThreads>(n * a + s);
  const double total_squares = team_sum<kNormThreads>(n * a * a + 2 * a * s + double{squares});
  if (threadIdx.x == 0) sums[blockIdx.x] = make_double2(total, total_squares);
}

struct GroupNorm {
  Input x, weight, bias;
  Output y;
};

// N divides a plane, so a chunk lies in one channel.
template <int N>
__global__ void group_norm_kernel(GroupNorm p, Groups g, const Moments* moments, int64_t total) {
  const int64_t index = thread_index();
  if (index >= total) return;
  const int64_t at = index * N, plane = divide(at, g.plane), group = divide(at, g.size);
  const int64_t c = plane - divide(plane, g.channels) * g.channels;
  const Moments m = moments[group];
  const float w = load_value(p.weight.data, p.weight.dtype, c);
  const float b = load_value(p.bias.data, p.bias.dtype, c);
  float v[N];
  load_values(p.x.data, p.x.dtype, at, v);
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = fmaf((v[i] - m.mean) * m.rstd, w, b);
  store_values(p.y.data, p.y.dtype, at, v);
}

bool vectors(const Groups& g, const Input& x) { return g.plane % 8 == 0 && vectors_of(x, 8); }

// Mean and reciprocal deviation of every group.
void group_moments(const Input& x, const Groups& g, float eps, double2* sums, Moments* moments,
                   cudaStream_t on) {
  const auto blocks = static_cast<unsigned>(g.count * g.parts);
  if (vectors(g, x)) {
    group_sums_kernel<8><<<blocks, kNormThreads, 0, on>>>(x, g, sums);
  } else {
    group_sums_kernel<1><<<blocks, kNormThreads, 0, on>>>(x, g, sums);
  }
  HT_CUDA_LAUNCHED();
  group_moments_kernel<<<blocks_for(g.count * 32, kNormThreads), kNormThreads, 0, on>>>(
      sums, g, eps, moments);
  HT_CUDA_LAUNCHED();
}

void group_norm(const NormArgs& args, Stream stream) {
  const Groups g = groups_of(args.x.shape, args.how.groups);
  if (g.numel() == 0) return;
  const GroupNorm p{input_of(args.x), input_of(args.weight), input_of(args.bias),
                    output_of(args.y)};
  const auto on = context_of(stream).stream();
  Workspace workspace(stream);
  auto* sums = reinterpret_cast<double2*>(workspace.bytes(g.count * g.parts * 16));
  auto* moments = reinterpret_cast<Moments*>(workspace.bytes(g.count * 8));
  group_moments(p.x, g, args.how.eps, sums, moments, on);
  if (vectors(g, p.x) && vectors_of(p.y, 8)) {
    const int64_t total = g.numel() / 8;
    group_norm_kernel<8>
        <<<blocks_for(total, kNormThreads), kNormThreads, 0, on>>>(p, g, moments, total);
  } else {
    const int64_t total = g.numel();
    group_norm_kernel<1>
        <<<blocks_for(total, kNormThreads), kNormThreads, 0, on>>>(p, g, moments, total);
  }
  HT_CUDA_LAUNCHED();
}

// ---- gradient -----------------------------------------------------------------------------------

// A block per plane.
__global__ void plane_sums_kernel(GroupNormGrad p, Groups g) {
  const int64_t start = blockIdx.x * g.plane;
  const Moments m = p.moments[divide(start, g.size)];
  float sum = 0, dot = 0;
  for (int64_t i = threadIdx.x; i < g.plane; i += kNormThreads) {
    const float dy = load_value(p.dy.data, p.dy.dtype, start + i);
    sum += dy;
    dot = fmaf(dy, (load_value(p.x.data, p.x.dtype, start + i) - m.mean) * m.rstd, dot);
  }
  sum = team_sum<kNormThreads>(sum);
  dot = team_sum<kNormThreads>(dot);
  if (threadIdx.x == 0) p.planes[blockIdx.x] = make_float2(sum, dot);
}

__global__ void group_dx_kernel(GroupNormGrad p, Groups g) {
  const int64_t at = thread_index();
  if (at >= g.numel()) return;
  const int64_t plane = divide(at, g.plane), group = divide(at, g.size);
  const Moments m = p.moments[group];
  const float2 terms = p.group_terms[group];
  const float w = load_value(p.weight.data, p.weight.dtype, plane % g.channels);
  const float z = (load_value(p.x.data, p.x.dtype, at) - m.mean) * m.rstd;
  const float dz = load_value(p.dy.data, p.dy.dtype, at) * w;
  const float dx = m.rstd * (dz - fmaf(z, terms.y, terms.x) / static_cast<float>(g.size));
  store_value(p.dx.data, p.dx.dtype, at, dx);
}

int64_t group_norm_grad_workspace(const NormGradArgs& args) {
  const Groups g = groups_of(args.x.shape, args.how.groups);
  const int64_t planes = args.x.shape[0] * args.x.shape[1];
  return moments_bytes(g) + aligned_bytes(planes * 8) + aligned_bytes(g.count * 8);
}

void group_norm_grad(const NormGradArgs& args, Stream stream) {
  const Groups g = groups_of(args.x.shape, args.how.groups);
  const auto on = context_of(stream).stream();
  if (g.numel() == 0) {
    for (const View* y : {&args.dweight, &args.dbias}) {
      const int64_t bytes = y->data == nullptr ? 0 : y->shape.numel() * size_of(y->dtype);
      if (bytes > 0) HT_CUDA(cudaMemsetAsync(y->data, 0, static_cast<size_t>(bytes), on));
    }
    return;
  }
  const int64_t planes = args.x.shape[0] * args.x.shape[1];
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
  group_moments(p.x, g, args.how.eps, sums, moments, on);
  plane_sums_kernel<<<static_cast<unsigned>(planes), kNormThreads, 0, on>>>(p, g);
  HT_CUDA_LAUNCHED();
  group_terms_kernel<<<blocks_for(g.channels + g.count, kNormThreads), kNormThreads, 0, on>>>(p, g);
  HT_CUDA_LAUNCHED();
  if (p.dx.data == nullptr) return;
  group_dx_kernel<<<blocks_for(g.numel(), kNormThreads), kNormThreads, 0, on>>>(p, g);
  HT_CUDA_LAUNCHED();
}

bool takes(const NormArgs& a) {
  return takes_input(a.x) && takes_input(a.weight) && takes_input(a.bias) && takes_output(a.y);
}
bool takes_grad(const NormGradArgs& a) {
  return takes_input(a.dy) && takes_input(a.x) && takes_input(a.weight) && takes_output(a.dx) &&
         takes_output(a.dweight) && takes_output(a.dbias);
}

}  // namespace

void fill_group_norm(Kernels& table) {
  table.group_norm = {
      [](const NormArgs& a) { return takes(a) && (a.how.channels_last || !a.how.silu); },
      [](const NormArgs& args, Stream stream) {
        (args.how.channels_last ? group_norm_last : group_norm)(args, stream);
      },
      [](const NormArgs& args, const Stream&) {
        return args.how.channels_last ? group_norm_last_workspace(args)
                                      : moments_bytes(groups_of(args.x.shape, args.how.groups));
      }};
  table.group_norm_grad = {takes_grad,
                           [](const NormGradArgs& args, Stream stream) {
                             (args.how.channels_last ? group_norm_last_grad : group_norm_grad)(
                                 args, stream);
                           },
                           [](const NormGradArgs& args, const Stream&) {
                             return args.how.channels_last ? group_norm_last_grad_workspace(args)
                                                           : group_norm_grad_workspace(args);
                           }};
}

}  // namespace halftone::cuda
