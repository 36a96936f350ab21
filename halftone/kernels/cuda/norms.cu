// Norms of rows. A row is read once from memory; later passes over it find it in the cache.
#include <algorithm>

#include "halftone/kernels/cuda/row_norms.cuh"

namespace halftone::cuda {
namespace {

struct RowNorm {
  Input x, weight;
  Output y;
  int64_t rows, cols;
  float eps;
};

template <int kTeam, int N>
__global__ void rms_norm_kernel(RowNorm p) {
  const int64_t row = team_row<kTeam>(), start = row * p.cols;
  if (row >= p.rows) return;
  float sum = 0;
  for_chunks<kTeam, N>(p.cols, [&](int64_t c) {
    float x[N];
    load_values(p.x.data, p.x.dtype, start + c, x);
#pragma unroll
    for (int i = 0; i < N; ++i) sum = fmaf(x[i], x[i], sum);
  });
  sum = team_sum<kTeam>(sum);
  const float rstd = 1.0f / sqrtf(sum / static_cast<float>(p.cols) + p.eps);
  for_chunks<kTeam, N>(p.cols, [&](int64_t c) {
    float x[N], w[N];
    load_values(p.x.data, p.x.dtype, start + c, x);
    load_values(p.weight.data, p.weight.dtype, c, w);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] *= rstd * w[i];
    store_values(p.y.data, p.y.dtype, start + c, x);
  });
}

// Mean first, then squares around it.
template <int kTeam, int N>
__device__ Moments row_moments(const Input& in, int64_t start, int64_t cols, float eps) {
  float sum = 0, squares = 0;
  for_chunks<kTeam, N>(cols, [&](int64_t c) {
    float x[N];
    load_values(in.data, in.dtype, start + c, x);
#pragma unroll
    for (int i = 0; i < N; ++i) sum += x[i];
  });
  const float mean = team_sum<kTeam>(sum) / static_cast<float>(cols);
  for_chunks<kTeam, N>(cols, [&](int64_t c) {
    float x[N];
    load_values(in.data, in.dtype, start + c, x);
#pragma unroll
    for (int i = 0; i < N; ++i) squares = fmaf(x[i] - mean, x[i] - mean, squares);
  });
  return {mean, 1.0f / sqrtf(team_sum<kTeam>(squares) / static_cast<float>(cols) + eps)};
}

template <int kTeam, int N>
__global__ void layer_norm_kernel(RowNorm p) {
  const int64_t row = team_row<kTeam>(), start = row * p.cols;
  if (row >= p.rows) return;
  const Moments m = row_moments<kTeam, N>(p.x, start, p.cols, p.eps);
  for_chunks<kTeam, N>(p.cols, [&](int64_t c) {
    float x[N];
    load_values(p.x.data, p.x.dtype, start + c, x);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = (x[i] - m.mean) * m.rstd;
    store_values(p.y.data, p.y.dtype, start + c, x);
  });
}

// ---- gradients ----------------------------------------------------------------------------------

struct RowNormGrad {
  Input dy, x, weight;
  Output dx, dweight;
  int64_t rows, cols;
  float eps;
  float* rstd = nullptr;     // [rows]
  float* partial = nullptr;  // [slices, cols]
  int64_t slices = 1;
};

// dx = rstd w dy - x rstd^3 mean(dy w x)
template <int kTeam, int N>
__global__ void rms_norm_grad_kernel(RowNormGrad p) {
  const int64_t row = team_row<kTeam>(), start = row * p.cols;
  if (row >= p.rows) return;
  float sum = 0, dot = 0;
  for_chunks<kTeam, N>(p.cols, [&](int64_t c) {
    float x[N], dy[N], w[N];
    load_values(p.x.data, p.x.dtype, start + c, x);
    load_values(p.dy.data, p.dy.dtype, start + c, dy);
    load_values(p.weight.data, p.weight.dtype, c, w);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      sum = fmaf(x[i], x[i], sum);
      dot = fmaf(dy[i] * w[i], x[i], dot);
    }
  });
  const auto cols = static_cast<float>(p.cols);
  const float rstd = 1.0f / sqrtf(team_sum<kTeam>(sum) / cols + p.eps);
  const float by = team_sum<kTeam>(dot) / cols * rstd * rstd;
  if (p.rstd != nullptr && threadIdx.x % kTeam == 0) p.rstd[row] = rstd;
  if (p.dx.data == nullptr) return;
  for_chunks<kTeam, N>(p.cols, [&](int64_t c) {
    float x[N], dy[N], w[N];
    load_values(p.x.data, p.x.dtype, start + c, x);
    load_values(p.dy.data, p.dy.dtype, start + c, dy);
    load_values(p.weight.data, p.weight.dtype, c, w);
#pragma unroll
    for (int i = 0; i < N; ++i) dy[i] = rstd * (dy[i] * w[i] - x[i] * by);
    store_values(p.dx.data, p.dx.dtype, start + c, dy);
  });
}

// One slice of the rows of dweight = sum(dy x rstd); a thread per column.
__global__ void rms_weight_grad_kernel(RowNormGrad p, int64_t tiles) {
  const int64_t slice = divide(blockIdx.x, tiles);
  const int64_t c = (blockIdx.x - slice * tiles) * kNormThreads + threadIdx.x;
  if (c >= p.cols) return;
  const int64_t per_slice = (p.rows + p.slices - 1) / p.slices;
  const int64_t end = min((slice + 1) * per_slice, p.rows);
  float sum = 0;
#pragma unroll 4
  for (int64_t r = slice * per_slice; r < end; ++r) {
    const int64_t i = r * p.cols + c;
    sum = fmaf(load_value(p.dy.data, p.dy.dtype, i) * load_value(p.x.data, p.x.dtype, i), p.rstd[r],
               sum);
  }
  p.partial[slice * p.cols + c] = sum;
}

__global__ void add_slices_kernel(RowNormGrad p) {
  const int64_t c = thread_index();
  if (c >= p.cols) return;
  float sum = 0;
  for (int64_t s = 0; s < p.slices; ++s) sum += p.partial[s * p.cols + c];
  store_value(p.dweight.data, p.dweight.dtype, c, sum);
}

// With z the normalized x: dx = rstd (dy - mean(dy) - z mean(dy z))
template <int kTeam, int N>
__global__ void layer_norm_grad_kernel(RowNormGrad p) {
  const int64_t row = team_row<kTeam>(), start = row * p.cols;
  if (row >= p.rows) return;
  const Moments m = row_moments<kTeam, N>(p.x, start, p.cols, p.eps);
  float sum = 0, dot = 0;
  for_chunks<kTeam, N>(p.cols, [&](int64_t c) {
    float x[N], dy[N];
    load_values(p.x.data, p.x.dtype, start + c, x);
    load_values(p.dy.data, p.dy.dtype, start + c, dy);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      sum += dy[i];
      dot = fmaf(dy[i], (x[i] - m.mean) * m.rstd, dot);
    }
  });
  const auto cols = static_cast<float>(p.cols);
  const float mean_dy = team_sum<kTeam>(sum) / cols, mean_dot = team_sum<kTeam>(dot) / cols;
  for_chunks<kTeam, N>(p.cols, [&](int64_t c) {
    float x[N], dy[N];
    load_values(p.x.data, p.x.dtype, start + c, x);
    load_values(p.dy.data, p.dy.dtype, start + c, dy);
#pragma unroll
    for (int i = 0; i < N; ++i)
      dy[i] = m.rstd * (dy[i] - mean_dy - (x[i] - m.mean) * m.rstd * mean_dot);
    store_values(p.dx.data, p.dx.dtype, start + c, dy);
  });
}

// ---- launches -----------------------------------------------------------------------------------

int64_t rows_of(const Shape& shape) { return shape[-1] == 0 ? 0 : shape.numel() / shape[-1]; }

RowNorm row_norm(const NormArgs& args) {
  return {input_of(args.x),      input_of(args.weight), output_of(args.y),
          rows_of(args.x.shape), args.x.shape[-1],      args.how.eps};
}
bool vectors(const RowNorm& p) {
  return p.cols % 8 == 0 && vectors_of(p.x, 8) && vectors_of(p.weight, 8) && vectors_of(p.y, 8);
}

void rms_norm(const NormArgs& args, Stream stream) {
  const RowNorm p = row_norm(args);
  const auto on = context_of(stream).stream();
  launch_rows(p.rows, p.cols, vectors(p), [&]<int kTeam, int N>(unsigned blocks) {
    rms_norm_kernel<kTeam, N><<<blocks, kNormThreads, 0, on>>>(p);
  });
}

void layer_norm(const NormArgs& args, Stream stream) {
  const RowNorm p = row_norm(args);
  const auto on = context_of(stream).stream();
  launch_rows(p.rows, p.cols, vectors(p), [&]<int kTeam, int N>(unsigned blocks) {
    layer_norm_kernel<kTeam, N><<<blocks, kNormThreads, 0, on>>>(p);
  });
}

int64_t weight_slices(int64_t rows) { return std::clamp<int64_t>(rows / 64, 1, 256); }

RowNormGrad row_norm_grad(const NormGradArgs& args) {
  RowNormGrad p{
      input_of(args.dy),       input_of(args.x),      input_of(args.weight), output_of(args.dx),
      output_of(args.dweight), rows_of(args.x.shape), args.x.shape[-1],      args.how.eps};
  p.slices = weight_slices(p.rows);
  return p;
}
bool vectors(const RowNormGrad& p) {
  return p.cols % 8 == 0 && vectors_of(p.dy, 8) && vectors_of(p.x, 8) && vectors_of(p.weight, 8) &&
         vectors_of(p.dx, 8);
}

int64_t rms_norm_grad_workspace(const NormGradArgs& args, const Stream&) {
  const int64_t rows = rows_of(args.x.shape);
  return float_workspace({rows, weight_slices(rows) * args.x.shape[-1]});
}

void rms_norm_grad(const NormGradArgs& args, Stream stream) {
  RowNormGrad p = row_norm_grad(args);
  const auto on = context_of(stream).stream();
  const bool wants_weight = p.dweight.data != nullptr && p.cols > 0;
  if (wants_weight) {
    Workspace workspace(stream);
    p.rstd = workspace.floats(p.rows);
    p.partial = workspace.floats(p.slices * p.cols);
  }
  launch_rows(p.rows, p.cols, vectors(p), [&]<int kTeam, int N>(unsigned blocks) {
    rms_norm_grad_kernel<kTeam, N><<<blocks, kNormThreads, 0, on>>>(p);
  });
  if (!wants_weight) return;
  const int64_t tiles = (p.cols + kNormThreads - 1) / kNormThreads;
  rms_weight_grad_kernel<<<static_cast<unsigned>(tiles * p.slices), kNormThreads, 0, on>>>(p,
                                                                                           tiles);
  HT_CUDA_LAUNCHED();
  add_slices_kernel<<<static_cast<unsigned>(tiles), kNormThreads, 0, on>>>(p);
  HT_CUDA_LAUNCHED();
}

void layer_norm_grad(const NormGradArgs& args, Stream stream) {
  const RowNormGrad p = row_norm_grad(args);
  if (p.dx.data == nullptr) return;
  const auto on = context_of(stream).stream();
  launch_rows(p.rows, p.cols, vectors(p), [&]<int kTeam, int N>(unsigned blocks) {
    layer_norm_grad_kernel<kTeam, N><<<blocks, kNormThreads, 0, on>>>(p);
  });
}

bool takes(const NormArgs& a) {
  return takes_input(a.x) && takes_input(a.weight) && takes_input(a.bias) && takes_output(a.y);
}
bool takes_grad(const NormGradArgs& a) {
  return takes_input(a.dy) && takes_input(a.x) && takes_input(a.weight) && takes_output(a.dx) &&
         takes_output(a.dweight) && takes_output(a.dbias);
}

}  // namespace

void fill_norms(Kernels& table) {
  table.rms_norm = {takes, rms_norm, nullptr};
  table.layer_norm = {takes, layer_norm, nullptr};
  table.rms_norm_grad = {takes_grad, rms_norm_grad, rms_norm_grad_workspace};
  table.layer_norm_grad = {takes_grad, layer_norm_grad, nullptr};
  fill_group_norm(table);
}

}  // namespace halftone::cuda
