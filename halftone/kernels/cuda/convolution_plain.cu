#include "halftone/kernels/cuda/context.h"
#include "halftone/kernels/cuda/convolution_kernels.h"
#include "halftone/kernels/cuda/convolution_values.cuh"

namespace halftone::cuda {
namespace {

constexpr int kThreads = 256;

// y [B, O, out_height, out_width], x [B, C, height, width], weight [O, C, kh, kw].
struct Geometry {
  int64_t batch, channels, height, width;
  int64_t out, out_height, out_width;
  int kh, kw, stride, top, left;

  Geometry(const Shape& x, const Shape& weight, const Shape& y, const ConvAttributes& how)
      : batch(x[0]),
        channels(x[1]),
        height(x[2]),
        width(x[3]),
        out(y[1]),
        out_height(y[2]),
        out_width(y[3]),
        kh(static_cast<int>(weight[2])),
        kw(static_cast<int>(weight[3])),
        stride(how.stride),
        top(how.pad[0]),
        left(how.pad[1]) {}
};

// One thread per element of y. The taps of a channel are summed first: errors grow with the number
// of channels, not of products.
__global__ void __launch_bounds__(kThreads)
    forward(Geometry g, Values x, Values weight, Values bias, Results y, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t c = i % g.out_width, r = i / g.out_width % g.out_height;
  const int64_t o = i / (g.out_width * g.out_height) % g.out;
  const int64_t b = i / (g.out_width * g.out_height * g.out);
  float sum = 0;
  for (int64_t k = 0; k < g.channels; ++k) {
    const int64_t plane = (b * g.channels + k) * g.height;
    const int64_t taps = (o * g.channels + k) * g.kh * g.kw;
    float part = 0;
    for (int u = 0; u < g.kh; ++u) {
      const int64_t row = r * g.stride + u - g.top;
      if (row < 0 || row >= g.height) continue;
      for (int v = 0; v < g.kw; ++v) {
        const int64_t column = c * g.stride + v - g.left;
        if (column < 0 || column >= g.width) continue;
        part = fmaf(x[(plane + row) * g.width + column], weight[taps + u * g.kw + v], part);
      }
    }
    sum += part;
  }
  y.store(i, bias.data == nullptr ? sum : sum + bias[o]);
}

// One thread per element of dx.
__global__ void __launch_bounds__(kThreads)
    input_grad(Geometry g, Values dy, Values weight, Results dx, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t column = i % g.width, row = i / g.width % g.height;
  const int64_t k = i / (g.width * g.height) % g.channels;
  const int64_t b = i / (g.width * g.height * g.channels);
  float sum = 0;
  for (int64_t o = 0; o < g.out; ++o) {
    const int64_t plane = (b * g.out + o) * g.out_height;
    const int64_t taps = (o * g.channels + k) * g.kh * g.kw;
    float part = 0;
    for (int u = 0; u < g.kh; ++u) {
      const int64_t r = row + g.top - u;
      if (r < 0 || r % g.stride != 0 || r / g.stride >= g.out_height) continue;
      for (int v = 0; v < g.kw; ++v) {
        const int64_t c = column + g.left - v;
        if (c < 0 || c % g.stride != 0 || c / g.stride >= g.out_width) continue;
        part = fmaf(dy[(plane + r / g.stride) * g.out_width + c / g.stride],
                    weight[taps + u * g.kw + v], part);
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
  const int64_t i = blockIdx.x;
  const int v = static_cast<int>(i % g.kw), u = static_cast<int>(i / g.kw % g.kh);
  const int64_t k = i / (g.kw * g.kh) % g.channels, o = i / (g.kw * g.kh * g.channels);
  const int64_t plane = g.out_height * g.out_width;
  float sum = 0;
  for (int64_t b = 0; b < g.batch; ++b) {
    for (int64_t p = threadIdx.x; p < plane; p += kThreads) {
      const int64_t row = p / g.out_width * g.stride + u - g.top;
      const int64_t column = p % g.out_width * g.stride + v - g.left;
      if (row < 0 || row >= g.height || column < 0 || column >= g.width) continue;
      sum = fmaf(dy[(b * g.out + o) * plane + p],
                 x[((b * g.channels + k) * g.height + row) * g.width + column], sum);
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
  const Geometry g(args.x.shape, args.weight.shape, args.y.shape, args.how);
  forward<<<blocks_for(count, kThreads), kThreads, 0, stream>>>(
      g, Values(args.x), Values(args.weight), Values(args.bias), Results(args.y), count);
  HT_CUDA_LAUNCHED();
}

void plain_conv2d_input_grad(const ConvInputGradArgs& args, cudaStream_t stream) {
  const int64_t count = args.dx.shape.numel();
  if (count == 0) return;
  const Geometry g(args.dx.shape, args.weight.shape, args.dy.shape, args.how);
  input_grad<<<blocks_for(count, kThreads), kThreads, 0, stream>>>(
      g, Values(args.dy), Values(args.weight), Results(args.dx), count);
  HT_CUDA_LAUNCHED();
}

void plain_conv2d_weight_grad(const ConvWeightGradArgs& args, cudaStream_t stream) {
  const int64_t count = args.dweight.shape.numel();
  if (count == 0) return;
  const Geometry g(args.x.shape, args.dweight.shape, args.dy.shape, args.how);
  weight_grad<<<blocks_for(count, 1), kThreads, 0, stream>>>(g, Values(args.dy), Values(args.x),
                                                             Results(args.dweight));
  HT_CUDA_LAUNCHED();
}

}  // namespace halftone::cuda
