#include "halftone/kernels/cuda/strided.cuh"

namespace halftone::cuda {
namespace {

struct Identity {
  __device__ float operator()(float x) const { return x; }
};
struct Constant {
  float value;
  __device__ float operator()() const { return value; }
};

// ---- copies -------------------------------------------------------------------------------------

// A copy that turns two dimensions around: `fast` is contiguous in x, the innermost one in y.
struct TransposePlan {
  StridedPlan<2> all;  // side 0 is y, side 1 is x
  int fast = 0;
  int64_t fast_tiles = 0, inner_tiles = 0;
};
constexpr int kTile = 32, kTileRows = 8;

// Through shared memory, so that reads and writes both follow memory.
__global__ void transpose_kernel(const __grid_constant__ TransposePlan p) {
  __shared__ float tile[kTile][kTile + 1];
  const int inner = p.all.rank - 1;
  int64_t rest = blockIdx.x;
  int64_t next = divide(rest, p.inner_tiles);
  const int64_t inner0 = (rest - next * p.inner_tiles) * kTile;
  rest = next;
  next = divide(rest, p.fast_tiles);
  const int64_t fast0 = (rest - next * p.fast_tiles) * kTile;
  rest = next;
  int64_t from = 0, to = 0;
  for (int d = inner - 1; d >= 0; --d) {
    if (d == p.fast) continue;
    next = divide(rest, p.all.dims[d]);
    const int64_t i = rest - next * p.all.dims[d];
    rest = next;
    to += i * p.all.side[0].strides[d];
    from += i * p.all.side[1].strides[d];
  }
  const Side &y = p.all.side[0], &x = p.all.side[1];
  const int64_t read_fast = fast0 + threadIdx.x;
  for (int k = threadIdx.y; k < kTile; k += kTileRows) {
    const int64_t i = inner0 + k;
    if (read_fast < p.all.dims[p.fast] && i < p.all.dims[inner])
      tile[k][threadIdx.x] = load_value(x.data, x.dtype, from + read_fast + i * x.strides[inner]);
  }
  __syncthreads();
  const int64_t write_inner = inner0 + threadIdx.x;
  for (int k = threadIdx.y; k < kTile; k += kTileRows) {
    const int64_t f = fast0 + k;
    if (f < p.all.dims[p.fast] && write_inner < p.all.dims[inner])
      store_value(y.data, y.dtype, to + f * y.strides[p.fast] + write_inner, tile[threadIdx.x][k]);
  }
}

// The dimension that x, but not y, has innermost; -1 where tiles would not pay.
int transposed_dim(const StridedPlan<2>& plan) {
  const int inner = plan.rank - 1;
  if (plan.side[0].strides[inner] != 1 || plan.side[1].strides[inner] <= 1) return -1;
  if (plan.dims[inner] < kTile / 2) return -1;
  for (int d = 0; d < inner; ++d) {
    if (plan.side[1].strides[d] == 1 && plan.dims[d] >= kTile / 2) return d;
  }
  return -1;
}

void copy(const CopyArgs& args, Stream stream) {
  StridedPlan<2> plan;
  plan.rank = args.rank;
  for (int d = 0; d < args.rank; ++d) plan.dims[d] = args.dims[d];
  plan.side[0] = side_of(args.y, args.y_dtype, args.y_strides);
  plan.side[1] = side_of(args.x, args.x_dtype, args.x_strides);
  if (args.x_dtype == args.y_dtype) {
    // Bits that only move may be seen as any type of their size; bf16 keeps every half, too.
    const DType moved = size_of(args.x_dtype) == 2 ? DType::kBF16 : DType::kF32;
    plan.side[0].dtype = plan.side[1].dtype = moved;
  }
  merge_dims(plan);
  if (plan.numel() == 0) return;
  const int fast = transposed_dim(plan);
  if (fast < 0) return launch_strided(plan, Identity{}, stream);
  TransposePlan p{plan, fast, (plan.dims[fast] + kTile - 1) / kTile,
                  (plan.inner() + kTile - 1) / kTile};
  const int64_t others = plan.numel() / plan.dims[fast] / plan.inner();
  const auto blocks = static_cast<unsigned>(others * p.fast_tiles * p.inner_tiles);
  transpose_kernel<<<blocks, dim3(kTile, kTileRows), 0, context_of(stream).stream()>>>(p);
  HT_CUDA_LAUNCHED();
}

bool takes_copy(const CopyArgs& a) {
  if (a.x_dtype == a.y_dtype) {
    return loads_as_float(a.x_dtype) || a.x_dtype == DType::kI32;
  }
  return loads_as_float(a.x_dtype) && stores_from_float(a.y_dtype);
}

void fill(const FillArgs& args, Stream stream) {
  StridedPlan<1> plan;
  plan.rank = args.y.shape.rank();
  for (int d = 0; d < plan.rank; ++d) plan.dims[d] = args.y.shape[d];
  plan.side[0] = side_of(args.y.data, args.y.dtype, packed_strides(args.y.shape));
  merge_dims(plan);
  launch_strided(plan, Constant{args.value}, stream);
}

// ---- pictures -----------------------------------------------------------------------------------

struct Picture {
  const void* x;
  DType x_dtype;
  void* y;
  DType y_dtype;
  int64_t rows, width;  // of the small one: planes * height rows
};

// N values of a small row become 2N of two large ones.
template <int N>
__global__ void upsample2x_kernel(Picture p, int64_t total) {
  const int64_t index = thread_index();
  if (index >= total) return;
  const int64_t chunks = p.width / N;
  const int64_t row = divide(index, chunks), at = (index - row * chunks) * N;
  float v[N], twice[2 * N];
  load_values(p.x, p.x_dtype, row * p.width + at, v);
#pragma unroll
  for (int i = 0; i < 2 * N; ++i) twice[i] = v[i / 2];
  // Large rows 2h and 2h + 1 of a plane are 2 * row and 2 * row + 1 over all planes.
  for (int64_t large = 2 * row; large <= 2 * row + 1; ++large) {
    const int64_t to = large * 2 * p.width + 2 * at;
    if constexpr (N == 1) {
      store_value(p.y, p.y_dtype, to, twice[0]);
      store_value(p.y, p.y_dtype, to + 1, twice[1]);
    } else {
      store_values(p.y, p.y_dtype, to, twice);
    }
  }
}

__global__ void upsample2x_grad_kernel(Picture p, int64_t total) {
  const int64_t index = thread_index();
  if (index >= total) return;
  const int64_t row = divide(index, p.width), col = index - row * p.width;
  const int64_t from = row * 4 * p.width + 2 * col;
  const float upper = load_value(p.x, p.x_dtype, from) + load_value(p.x, p.x_dtype, from + 1);
  const float lower = load_value(p.x, p.x_dtype, from + 2 * p.width) +
                      load_value(p.x, p.x_dtype, from + 2 * p.width + 1);
  store_value(p.y, p.y_dtype, index, upper + lower);
}

// With channels last: N channels of a small pixel, and of the four that it becomes.
struct Pixels {
  Picture picture;  // rows: items * height
  int64_t channels;
};

template <int N>
struct PixelChunk {
  int64_t small, large[4];  // where they begin

  __device__ PixelChunk(const Pixels& p, int64_t index) {
    const int64_t chunks = p.channels / N, width = p.picture.width;
    const int64_t pixel = divide(index, chunks), at = (index - pixel * chunks) * N;
    const int64_t row = divide(pixel, width), column = pixel - row * width;
    small = pixel * p.channels + at;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      large[i] = ((2 * row + i / 2) * 2 * width + 2 * column + i % 2) * p.channels + at;
    }
  }
};

template <int N>
__global__ void upsample2x_last_kernel(Pixels p, int64_t total) {
  const int64_t index = thread_index();
  if (index >= total) return;
  const PixelChunk<N> chunk(p, index);
  float v[N];
  load_values(p.picture.x, p.picture.x_dtype, chunk.small, v);
#pragma unroll
  for (int i = 0; i < 4; ++i) store_values(p.picture.y, p.picture.y_dtype, chunk.large[i], v);
}

template <int N>
__global__ void upsample2x_last_grad_kernel(Pixels p, int64_t total) {
  const int64_t index = thread_index();
  if (index >= total) return;
  const PixelChunk<N> chunk(p, index);
  float v[4][N], sum[N];
#pragma unroll
  for (int i = 0; i < 4; ++i) load_values(p.picture.x, p.picture.x_dtype, chunk.large[i], v[i]);
#pragma unroll
  for (int i = 0; i < N; ++i) sum[i] = (v[0][i] + v[1][i]) + (v[2][i] + v[3][i]);
  store_values(p.picture.y, p.picture.y_dtype, chunk.small, sum);
}

Picture picture_of(const Upsample2xArgs& args, const Shape& small) {
  if (args.how.channels_last) {
    return {args.x.data, args.x.dtype, args.y.data, args.y.dtype, small[0] * small[1], small[2]};
  }
  return {args.x.data, args.x.dtype, args.y.data, args.y.dtype, small[0] * small[1] * small[2],
          small[3]};
}

// Calls launch.template operator()<N>(blocks, threads that do something).
template <class Launch>
void launch_pixels(const Pixels& p, const Launch& launch) {
  const Picture& of = p.picture;
  const int64_t count = of.rows * of.width * p.channels;
  if (count == 0) return;
  if (p.channels % 8 == 0 && aligned_for(of.x, of.x_dtype, 8) && aligned_for(of.y, of.y_dtype, 8)) {
    launch.template operator()<8>(blocks_for(count / 8, 256), count / 8);
  } else {
    launch.template operator()<1>(blocks_for(count, 256), count);
  }
  HT_CUDA_LAUNCHED();
}

void upsample2x(const Upsample2xArgs& args, Stream stream) {
  const Picture p = picture_of(args, args.x.shape);
  const auto on = context_of(stream).stream();
  if (args.how.channels_last) {
    const Pixels pixels{p, args.x.shape[3]};
    return launch_pixels(pixels, [&]<int N>(unsigned blocks, int64_t total) {
      upsample2x_last_kernel<N><<<blocks, 256, 0, on>>>(pixels, total);
    });
  }
  const int64_t count = p.rows * p.width;
  if (count == 0) return;
  const bool vectors =
      p.width % 4 == 0 && aligned_for(p.x, p.x_dtype, 4) && aligned_for(p.y, p.y_dtype, 8);
  if (vectors) {
    upsample2x_kernel<4><<<blocks_for(count / 4, 256), 256, 0, on>>>(p, count / 4);
  } else {
    upsample2x_kernel<1><<<blocks_for(count, 256), 256, 0, on>>>(p, count);
  }
  HT_CUDA_LAUNCHED();
}

void upsample2x_grad(const Upsample2xArgs& args, Stream stream) {
  const Picture p = picture_of(args, args.y.shape);
  const auto on = context_of(stream).stream();
  if (args.how.channels_last) {
    const Pixels pixels{p, args.y.shape[3]};
    return launch_pixels(pixels, [&]<int N>(unsigned blocks, int64_t total) {
      upsample2x_last_grad_kernel<N><<<blocks, 256, 0, on>>>(pixels, total);
    });
  }
  const int64_t count = p.rows * p.width;
  if (count == 0) return;
  upsample2x_grad_kernel<<<blocks_for(count, 256), 256, 0, on>>>(p, count);
  HT_CUDA_LAUNCHED();
}

bool takes_picture(const Upsample2xArgs& a) {
  return loads_as_float(a.x.dtype) && stores_from_float(a.y.dtype);
}

}  // namespace

void fill_copies(Kernels& table) {
  table.copy = {takes_copy, copy, nullptr};
  table.fill = {[](const FillArgs& a) { return stores_from_float(a.y.dtype); }, fill, nullptr};
  table.upsample2x = {takes_picture, upsample2x, nullptr};
  table.upsample2x_grad = {takes_picture, upsample2x_grad, nullptr};
}

}  // namespace halftone::cuda
