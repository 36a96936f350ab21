#include "halftone/kernels/cuda/context.h"
#include "halftone/kernels/cuda/convolution_kernels.h"
#include "halftone/kernels/cuda/convolution_values.cuh"
#include "halftone/kernels/layouts.h"

namespace halftone::cuda {
namespace {

constexpr int kThreads = 256;

// Of a convolution: its pictures and its weight, in whatever order they lie.
struct Geometry {
  PictureLayout x, y;
  KernelLayout weight;
  int stride, top, left;

  Geometry(const Shape& x_shape, KernelLayout by, const Shape& y_shape, const ConvAttributes& how)
      : x(x_shape, how.channels_last),
        y(y_shape, how.channels_last),
        weight(by),
        stride(how.stride),
        top(how.pad[0]),
        left(how.pad[1]) {}
};

// A place in a picture, of threads that follow its memory.
struct Place {
  int64_t b, c, row, column;

  __device__ Place(int64_t i, const PictureLayout& p) {
    b = i / p.item;
    c = i / p.channel % p.channels;
    row = i / p.row % p.height;
    column = i / p.column % p.width;
  }
};

struct Sum {  // of a convolution and what is added to it
  Values x, weight, bias, shift, addend;
  Results y;
};

// One thread per element of y. The taps of a channel are summed first: errors grow with the number
// of channels, not of products.
__global__ void __launch_bounds__(kThreads) forward(Geometry g, Sum s, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const Place to(i, g.y);
  float sum = 0;
  for (int64_t k = 0; k < g.x.channels; ++k) {
    float part = 0;
    for (int64_t u = 0; u < g.weight.height; ++u) {
      const int64_t row = to.row * g.stride + u - g.top;
      if (row < 0 || row >= g.x.height) continue;
      for (int64_t v = 0; v < g.weight.width; ++v) {
        const int64_t column = to.column * g.stride + v - g.left;
        if (column < 0 || column >= g.x.width) continue;
        part = fmaf(s.x[g.x.at(to.b, k, row, column)], s.weight[g.weight.at(to.c, k, u, v)], part);
      }
    }
    sum += part;
  }
  if (s.bias.data != nullptr) sum += s.bias[to.c];
  if (s.shift.data != nullptr) sum += s.shift[to.b * g.y.channels + to.c];
  if (s.addend.data != nullptr) sum += s.addend[i];
  s.y.store(i, sum);
}

// One thread per element of dx.
__global__ void __launch_bounds__(kThreads)
    input_grad(Geometry g, Values dy, Values weight, Results dx, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const Place to(i, g.x);
  float sum = 0;
  for (int64_t o = 0; o < g.y.channels; ++o) {
    float part = 0;
    for (int64_t u = 0; u < g.weight.height; ++u) {
      const int64_t r = to.row + g.top - u;
      if (r < 0 || r % g.stride != 0 || r / g.stride >= g.y.height) continue;
      for (int64_t v = 0; v < g.weight.width; ++v) {
        const int64_t c = to.column + g.left - v;
        if (c < 0 || c % g.stride != 0 || c / g.stride >= g.y.width) continue;
        part = fmaf(dy[g.y.at(to.b, o, r / g.stride, c / g.stride)],
                    weight[g.weight.at(o, to.c, u, v)], part);
      }
    }
    sum += part;
  }
  dx.store(i, sum);
}

// One block per element of dweight, which is a sum over every pixel of y.
__global__ void __launch_bounds__(kThreads)
    weight_grad(Geometry g, Values dy, Values x, Results dweight) {
  __shared__ float sums[kThreads];
  const int64_t i = blockIdx.x, taps = g.weight.taps();
  const int64_t v = i % g.weight.width, u = i / g.weight.width % g.weight.height;
  const int64_t k = i / taps % g.x.channels, o = i / (taps * g.x.channels);
  float sum = 0;
  for (int64_t b = 0; b < g.x.batch; ++b) {
    for (int64_t p = threadIdx.x; p < g.y.plane(); p += kThreads) {
      const int64_t r = p / g.y.width, c = p % g.y.width;
      const int64_t row = r * g.stride + u - g.top, column = c * g.stride + v - g.left;
      if (row < 0 || row >= g.x.height || column < 0 || column >= g.x.width) continue;
      sum = fmaf(dy[g.y.at(b, o, r, c)], x[g.x.at(b, k, row, column)], sum);
    }
  }
  sums[threadIdx.x] = sum;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) dweight.store(i, sums[0]);
}

}  // namespace

void plain_conv2d(const ConvArgs& args, cudaStream_t stream) {
  const int64_t count = args.y.shape.numel();
  if (count == 0) return;
  const Geometry g(args.x.shape, {args.weight.shape, args.weight.channels_last}, args.y.shape,
                   args.how);
  const Sum sum{Values(args.x),     Values(args.weight), Values(args.bias),
                Values(args.shift), Values(args.addend), Results(args.y)};
  forward<<<blocks_for(count, kThreads), kThreads, 0, stream>>>(g, sum, count);
  HT_CUDA_LAUNCHED();
}

void plain_conv2d_input_grad(const ConvInputGradArgs& args, cudaStream_t stream) {
  const int64_t count = args.dx.shape.numel();
  if (count == 0) return;
  const Geometry g(args.dx.shape, {args.weight.shape, args.weight.channels_last}, args.dy.shape,
                   args.how);
  input_grad<<<blocks_for(count, kThreads), kThreads, 0, stream>>>(
      g, Values(args.dy), Values(args.weight), Results(args.dx), count);
  HT_CUDA_LAUNCHED();
}

void plain_conv2d_weight_grad(const ConvWeightGradArgs& args, cudaStream_t stream) {
  const int64_t count = args.dweight.shape.numel();
  if (count == 0) return;
  const Geometry g(args.x.shape, {args.dweight.shape, false}, args.dy.shape, args.how);
  weight_grad<<<blocks_for(count, 1), kThreads, 0, stream>>>(g, Values(args.dy), Values(args.x),
                                                             Results(args.dweight));
  HT_CUDA_LAUNCHED();
}

}  // namespace halftone::cuda
