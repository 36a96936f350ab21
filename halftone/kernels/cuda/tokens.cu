#include "halftone/base/gaussian.h"
#include "halftone/kernels/cuda/context.h"
#include "halftone/kernels/cuda/elements.cuh"
#include "halftone/kernels/dropout.h"

namespace halftone::cuda {
namespace {

constexpr int kThreads = 256;

// ---- rotary positions ---------------------------------------------------------------------------

struct Rope {
  const void *x, *cosine, *sine;
  DType x_dtype, cosine_dtype, sine_dtype;
  void* y;
  DType y_dtype;
  int64_t heads, half;  // of x [B, T, heads, 2 * half]
  bool inverse;
};

// N pairs that follow each other: 2N neighbours, or N of either half.
template <int N, RopeLayout kLayout>
__global__ void rope_kernel(Rope p, int64_t total) {
  const int64_t index = thread_index();
  if (index >= total) return;
  const int64_t chunks = p.half / N;
  const int64_t head = divide(index, chunks), pair = (index - head * chunks) * N;
  const int64_t angle = divide(head, p.heads) * p.half + pair, start = head * 2 * p.half;
  float c[N], s[N];
  load_values(p.cosine, p.cosine_dtype, angle, c);
  load_values(p.sine, p.sine_dtype, angle, s);
  if (p.inverse) {
#pragma unroll
    for (int i = 0; i < N; ++i) s[i] = -s[i];
  }
  const auto rotate = [&](int i, float& a, float& b) {
    const float rotated = a * c[i] - b * s[i];
    b = a * s[i] + b * c[i];
    a = rotated;
  };
  if constexpr (kLayout == RopeLayout::kHalves) {
    float a[N], b[N];
    load_values(p.x, p.x_dtype, start + pair, a);
    load_values(p.x, p.x_dtype, start + pair + p.half, b);
#pragma unroll
    for (int i = 0; i < N; ++i) rotate(i, a[i], b[i]);
    store_values(p.y, p.y_dtype, start + pair, a);
    store_values(p.y, p.y_dtype, start + pair + p.half, b);
  } else if constexpr (N == 1) {
    float a = load_value(p.x, p.x_dtype, start + 2 * pair);
    float b = load_value(p.x, p.x_dtype, start + 2 * pair + 1);
    rotate(0, a, b);
    store_value(p.y, p.y_dtype, start + 2 * pair, a);
    store_value(p.y, p.y_dtype, start + 2 * pair + 1, b);
  } else {
    float v[2 * N];
    load_values(p.x, p.x_dtype, start + 2 * pair, v);
#pragma unroll
    for (int i = 0; i < N; ++i) rotate(i, v[2 * i], v[2 * i + 1]);
    store_values(p.y, p.y_dtype, start + 2 * pair, v);
  }
}

void rope(const RopeArgs& args, Stream stream) {
  const Rope p{args.x.data,       args.cosine.data,    args.sine.data,  args.x.dtype,
               args.cosine.dtype, args.sine.dtype,     args.y.data,     args.y.dtype,
               args.x.shape[2],   args.x.shape[3] / 2, args.how.inverse};
  const int64_t pairs = args.x.shape.numel() / 2;
  if (pairs == 0) return;
  const bool vectors = p.half % 4 == 0 && aligned_for(p.x, p.x_dtype, 8) &&
                       aligned_for(p.y, p.y_dtype, 8) && aligned_for(p.cosine, p.cosine_dtype, 4) &&
                       aligned_for(p.sine, p.sine_dtype, 4);
  const auto on = context_of(stream).stream();
  const int64_t total = vectors ? pairs / 4 : pairs;
  const unsigned blocks = blocks_for(total, kThreads);
  if (args.how.layout == RopeLayout::kHalves) {
    if (vectors) {
      rope_kernel<4, RopeLayout::kHalves><<<blocks, kThreads, 0, on>>>(p, total);
    } else {
      rope_kernel<1, RopeLayout::kHalves><<<blocks, kThreads, 0, on>>>(p, total);
    }
  } else {
    if (vectors) {
      rope_kernel<4, RopeLayout::kInterleaved><<<blocks, kThreads, 0, on>>>(p, total);
    } else {
      rope_kernel<1, RopeLayout::kInterleaved><<<blocks, kThreads, 0, on>>>(p, total);
    }
  }
  HT_CUDA_LAUNCHED();
}

// ---- embedding ----------------------------------------------------------------------------------

struct Embedding {
  const int32_t* ids;
  int64_t rows, cols;  // of the table
  const void* table;
  DType table_dtype;
  void* y;
  DType y_dtype;
};

template <int N>
__global__ void embedding_kernel(Embedding p, int64_t total) {
  const int64_t index = thread_index();
  if (index >= total) return;
  const int64_t chunks = p.cols / N;
  const int64_t token = divide(index, chunks), c = (index - token * chunks) * N;
  const int64_t id = p.ids[token];
  float v[N];
  if (id >= 0 && id < p.rows) {
    load_values(p.table, p.table_dtype, id * p.cols + c, v);
  } else {  // nobody can be told from here; what comes of it must not look like a result
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = bit_cast<float>(0x7FC00000u);
  }
  store_values(p.y, p.y_dtype, token * p.cols + c, v);
}

void embedding(const EmbeddingArgs& args, Stream stream) {
  const Embedding p{static_cast<const int32_t*>(args.ids.data),
                    args.table.shape[0],
                    args.table.shape[1],
                    args.table.data,
                    args.table.dtype,
                    args.y.data,
                    args.y.dtype};
  const int64_t count = args.ids.shape.numel() * p.cols;
  if (count == 0) return;
  const auto on = context_of(stream).stream();
  if (p.cols % 8 == 0 && aligned_for(p.table, p.table_dtype, 8) && aligned_for(p.y, p.y_dtype, 8)) {
    embedding_kernel<8><<<blocks_for(count / 8, kThreads), kThreads, 0, on>>>(p, count / 8);
  } else {
    embedding_kernel<1><<<blocks_for(count, kThreads), kThreads, 0, on>>>(p, count);
  }
  HT_CUDA_LAUNCHED();
}

struct EmbeddingGrad {
  const int32_t* ids;
  int64_t tokens, rows, cols;
  const void* dy;
  DType dy_dtype;
  void* dtable;
  DType dtable_dtype;
};

// A block per token: the first token of an id sums all of them, in their order.
__global__ void embedding_grad_kernel(EmbeddingGrad p) {
  const int64_t first = blockIdx.x;
  const int32_t id = p.ids[first];
  bool seen = id < 0 || id >= p.rows;
  for (int64_t i = threadIdx.x; i < first; i += kThreads) seen = seen || p.ids[i] == id;
  if (__syncthreads_or(seen)) return;
  for (int64_t c = threadIdx.x; c < p.cols; c += kThreads) {
    float sum = 0;
    for (int64_t i = first; i < p.tokens; ++i) {
      if (p.ids[i] == id) sum += load_value(p.dy, p.dy_dtype, i * p.cols + c);
    }
    store_value(p.dtable, p.dtable_dtype, id * p.cols + c, sum);
  }
}

void embedding_grad(const EmbeddingGradArgs& args, Stream stream) {
  const EmbeddingGrad p{static_cast<const int32_t*>(args.ids.data),
                        args.ids.shape.numel(),
                        args.dtable.shape[0],
                        args.dtable.shape[1],
                        args.dy.data,
                        args.dy.dtype,
                        args.dtable.data,
                        args.dtable.dtype};
  const int64_t bytes = p.rows * p.cols * size_of(p.dtable_dtype);
  if (bytes == 0) return;
  const auto on = context_of(stream).stream();
  HT_CUDA(cudaMemsetAsync(p.dtable, 0, static_cast<size_t>(bytes), on));
  if (p.tokens == 0) return;
  embedding_grad_kernel<<<static_cast<unsigned>(p.tokens), kThreads, 0, on>>>(p);
  HT_CUDA_LAUNCHED();
}

// ---- padding ------------------------------------------------------------------------------------

struct PadRows {
  const void* x;
  DType x_dtype;
  const void* token;  // null: zeros
  DType token_dtype;
  const int32_t* lengths;
  void* y;
  DType y_dtype;
  int64_t rows, cols;  // of each item of the batch
};

template <int N>
__global__ void pad_rows_kernel(PadRows p, int64_t total) {
  const int64_t index = thread_index();
  if (index >= total) return;
  const int64_t chunks = p.cols / N;
  const int64_t row = divide(index, chunks), c = (index - row * chunks) * N;
  const int64_t item = divide(row, p.rows);
  float v[N] = {};
  if (row - item * p.rows < p.lengths[item]) {
    load_values(p.x, p.x_dtype, row * p.cols + c, v);
  } else if (p.token != nullptr) {
    load_values(p.token, p.token_dtype, c, v);
  }
  store_values(p.y, p.y_dtype, row * p.cols + c, v);
}

void launch_pad_rows(const PadRows& p, int64_t items, cudaStream_t on) {
  const int64_t count = items * p.rows * p.cols;
  if (count == 0) return;
  const bool vectors = p.cols % 8 == 0 && aligned_for(p.x, p.x_dtype, 8) &&
                       aligned_for(p.y, p.y_dtype, 8) &&
                       (p.token == nullptr || aligned_for(p.token, p.token_dtype, 8));
  if (vectors) {
    pad_rows_kernel<8><<<blocks_for(count / 8, kThreads), kThreads, 0, on>>>(p, count / 8);
  } else {
    pad_rows_kernel<1><<<blocks_for(count, kThreads), kThreads, 0, on>>>(p, count);
  }
  HT_CUDA_LAUNCHED();
}

void pad_rows(const PadRowsArgs& args, Stream stream) {
  launch_pad_rows({args.x.data, args.x.dtype, args.token.data, args.token.dtype,
                   static_cast<const int32_t*>(args.lengths.data), args.y.data, args.y.dtype,
                   args.x.shape[1], args.x.shape[2]},
                  args.x.shape[0], context_of(stream).stream());
}

struct TokenGrad {
  const void* dy;
  DType dy_dtype;
  const int32_t* lengths;
  void* dtoken;
  DType dtoken_dtype;
  int64_t items, rows, cols;
};
constexpr int kColumns = 32, kLanes = 8;

// Columns by threadIdx.x; the padded rows are shared among kLanes and summed in their order.
__global__ void token_grad_kernel(TokenGrad p) {
  __shared__ float parts[kLanes][kColumns];
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  float sum = 0;
  if (c < p.cols) {
    for (int64_t b = 0; b < p.items; ++b) {
      for (int64_t t = max(p.lengths[b], 0) + threadIdx.y; t < p.rows; t += kLanes)
        sum += load_value(p.dy, p.dy_dtype, (b * p.rows + t) * p.cols + c);
    }
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || c >= p.cols) return;
  for (int lane = 1; lane < kLanes; ++lane) sum += parts[lane][threadIdx.x];
  store_value(p.dtoken, p.dtoken_dtype, c, sum);
}

void pad_rows_grad(const PadRowsGradArgs& args, Stream stream) {
  const auto on = context_of(stream).stream();
  const auto* lengths = static_cast<const int32_t*>(args.lengths.data);
  const int64_t items = args.dy.shape[0], rows = args.dy.shape[1], cols = args.dy.shape[2];
  if (args.dx.data != nullptr) {
    launch_pad_rows({args.dy.data, args.dy.dtype, nullptr, DType::kF32, lengths, args.dx.data,
                     args.dx.dtype, rows, cols},
                    items, on);
  }
  if (args.dtoken.data == nullptr || cols == 0) return;
  token_grad_kernel<<<blocks_for(cols, kColumns), dim3(kColumns, kLanes), 0, on>>>(
      {args.dy.data, args.dy.dtype, lengths, args.dtoken.data, args.dtoken.dtype, items, rows,
       cols});
  HT_CUDA_LAUNCHED();
}

// ---- noise --------------------------------------------------------------------------------------

__global__ void gaussian_kernel(const int32_t* keys, int64_t count, int64_t total, float* y) {
  const int64_t index = thread_index();
  if (index >= total) return;
  const int64_t pairs = (count + 1) / 2, row = divide(index, pairs), at = (index - row * pairs) * 2;
  const GaussianPair two = gaussian_pair(philox_key(keys + 4 * row), static_cast<uint64_t>(at / 2));
  y[row * count + at] = two.first;
  if (at + 1 < count) y[row * count + at + 1] = two.second;
}

void gaussian(const GaussianArgs& args, Stream stream) {
  const int64_t rows = args.keys.shape[0];
  const int64_t count = rows == 0 ? 0 : args.y.shape.numel() / rows;
  const int64_t total = rows * ((count + 1) / 2);
  if (total == 0) return;
  gaussian_kernel<<<blocks_for(total, kThreads), kThreads, 0, context_of(stream).stream()>>>(
      static_cast<const int32_t*>(args.keys.data), count, total, static_cast<float*>(args.y.data));
  HT_CUDA_LAUNCHED();
}

struct DropoutRows {
  const void* x;
  void* y;
  DType dtype;
  const int32_t* keys;
  int64_t count;  // values of a row
  Dropout draw;
};

// One draw makes four values.
__global__ void dropout_kernel(DropoutRows p, int64_t total) {
  const int64_t index = thread_index();
  if (index >= total) return;
  const int64_t fours = (p.count + 3) / 4, row = divide(index, fours);
  const int64_t at = (index - row * fours) * 4;
  const PhiloxBlock drawn = p.draw.block(philox_key(p.keys + 4 * row), at);
  for (int k = 0; k < 4 && at + k < p.count; ++k) {
    const float factor = p.draw.factor(drawn.word[k]);
    const int64_t i = row * p.count + at + k;
    const float x = load_value(p.x, p.dtype, i);
    store_value(p.y, p.dtype, i, factor == 0 ? 0.0f : x * factor);
  }
}

void dropout(const DropoutArgs& args, Stream stream) {
  const int64_t rows = args.keys.shape[0];
  const int64_t count = rows == 0 ? 0 : args.y.shape.numel() / rows;
  const int64_t total = rows * ((count + 3) / 4);
  if (total == 0) return;
  dropout_kernel<<<blocks_for(total, kThreads), kThreads, 0, context_of(stream).stream()>>>(
      {args.x.data, args.y.data, args.y.dtype, static_cast<const int32_t*>(args.keys.data), count,
       Dropout(args.how)},
      total);
  HT_CUDA_LAUNCHED();
}

bool wanted(const View& y) { return y.data == nullptr || stores_from_float(y.dtype); }

}  // namespace

void fill_tokens(Kernels& table) {
  table.rope = {[](const RopeArgs& a) {
                  return loads_as_float(a.x.dtype) && loads_as_float(a.cosine.dtype) &&
                         loads_as_float(a.sine.dtype) && stores_from_float(a.y.dtype);
                },
                rope, nullptr};
  table.embedding = {[](const EmbeddingArgs& a) {
                       return a.ids.dtype == DType::kI32 && loads_as_float(a.table.dtype) &&
                              stores_from_float(a.y.dtype);
                     },
                     embedding, nullptr};
  table.embedding_grad = {[](const EmbeddingGradArgs& a) {
                            return a.ids.dtype == DType::kI32 && loads_as_float(a.dy.dtype) &&
                                   stores_from_float(a.dtable.dtype);
                          },
                          embedding_grad, nullptr};
  table.pad_rows = {[](const PadRowsArgs& a) {
                      return a.lengths.dtype == DType::kI32 && loads_as_float(a.x.dtype) &&
                             loads_as_float(a.token.dtype) && stores_from_float(a.y.dtype);
                    },
                    pad_rows, nullptr};
  table.pad_rows_grad = {[](const PadRowsGradArgs& a) {
                           return a.lengths.dtype == DType::kI32 && loads_as_float(a.dy.dtype) &&
                                  wanted(a.dx) && wanted(a.dtoken);
                         },
                         pad_rows_grad, nullptr};
  table.gaussian = {
      [](const GaussianArgs& a) { return a.keys.dtype == DType::kI32 && a.y.dtype == DType::kF32; },
      gaussian, nullptr};
  table.dropout = {[](const DropoutArgs& a) {
                     return a.keys.dtype == DType::kI32 && a.x.dtype == a.y.dtype &&
                            (a.x.dtype == DType::kF32 || a.x.dtype == DType::kBF16);
                   },
                   dropout, nullptr};
}

}  // namespace halftone::cuda
