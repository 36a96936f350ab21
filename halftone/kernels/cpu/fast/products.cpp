// Matrix products and convolutions through oneDNN, in float: its bf16 is several times slower on
// CPUs without AMX. Weights in 16 bits are converted a panel at a time beside the product.
#include <dnnl.hpp>

#include "halftone/base/error.h"
#include "halftone/kernels/cpu/fast/rows.h"

namespace halftone::fast {
namespace {

void check(dnnl_status_t status) { HT_ASSERT(status == dnnl_success); }

std::vector<float> converted(const ConstView& x, Stream stream) {
  const int64_t n = x.shape.numel();
  std::vector<float> out(static_cast<size_t>(n));
  parallel_for(stream.threads, n, kValuesPerThread, [&](int64_t begin, int64_t end) {
    const float* in = read(x, begin, end - begin, out.data() + begin);
    if (in != out.data() + begin) std::copy(in, in + (end - begin), out.data() + begin);
  });
  return out;
}

// Fewer rows than this would get other bits from oneDNN than many do. Items with fewer (modulation
// has one) take the other way however many items share the batch.
constexpr int64_t kFewRows = 16;

// y[m][n] = a[m] . b[n]: each product alone, in a fixed order.
void few_rows(const MatMulArgs& args, Stream stream) {
  const int64_t m = args.y.shape[0], n = args.y.shape[1], k = args.a.shape[1];
  const Floats a(args.a), bias(args.bias);
  std::vector<float> y(static_cast<size_t>(m * n));
  for_rows(stream, n, k * m, [&](int64_t begin, int64_t end) {
    std::vector<float> buffer(static_cast<size_t>(k));
    for (int64_t j = begin; j < end; ++j) {
      const float* b = read(args.b, j * k, k, buffer.data());
      for (int64_t i = 0; i < m; ++i) {
        const float* row = a.data() + i * k;
        const float sum = dot(row, b, k);
        y[i * n + j] = bias.data() == nullptr ? sum : sum + bias[j];
      }
    }
  });
  float* out = target(args.y, 0, y.data());
  if (out != y.data()) std::copy(y.begin(), y.end(), out);
  write(args.y, 0, m * n, y.data());
}

void matmul(const MatMulArgs& args, Stream stream) {
  const int64_t m = args.y.shape[0], n = args.y.shape[1];
  const int64_t k = args.a.shape[args.how.transpose_a ? 0 : 1];
  if (m == 0 || n == 0) return;
  const bool few = args.rows_per_item > 0 && args.rows_per_item < kFewRows;
  if (few && !args.how.transpose_a && args.how.transpose_b) return few_rows(args, stream);
  const ThreadLimit limit(stream.threads);
  std::vector<float> a_buffer, y_buffer;
  const float* a = static_cast<const float*>(args.a.data);
  if (args.a.dtype != DType::kF32) {
    a_buffer = converted(args.a, stream);
    a = a_buffer.data();
  }
  if (args.y.dtype != DType::kF32) y_buffer.resize(static_cast<size_t>(m * n));
  float* y = target(args.y, 0, y_buffer.data());
  const char trans_a = args.how.transpose_a ? 'T' : 'N', trans_b = args.how.transpose_b ? 'T' : 'N';
  const int64_t lda = args.how.transpose_a ? m : k, ldb = args.how.transpose_b ? k : n;
  if (args.b.dtype == DType::kF32) {
    check(dnnl_sgemm(trans_a, trans_b, m, n, k, 1.0f, a, lda,
                     static_cast<const float*>(args.b.data), ldb, 0.0f, y, n));
  } else if (args.how.transpose_b) {
    // Panels of about a megabyte: they stay in the cache between conversion and product.
    const int64_t panel =
        std::clamp<int64_t>((1 << 18) / std::max<int64_t>(k, 1) / 16 * 16, 64, 1024);
    std::vector<float> buffer(static_cast<size_t>(std::min(panel, n) * k));
    for (int64_t first = 0; first < n; first += panel) {
      const int64_t count = std::min(panel, n - first);
      for_rows(stream, count, k, [&](int64_t begin, int64_t end) {
        read(args.b, (first + begin) * k, (end - begin) * k, buffer.data() + begin * k);
      });
      check(dnnl_sgemm(trans_a, 'T', m, count, k, 1.0f, a, lda, buffer.data(), k, 0.0f, y + first,
                       n));
    }
  } else {
    const std::vector<float> b = converted(args.b, stream);
    check(dnnl_sgemm(trans_a, 'N', m, n, k, 1.0f, a, lda, b.data(), ldb, 0.0f, y, n));
  }
  const Floats bias(args.bias);
  for_rows(stream, m, n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (bias.data() != nullptr) {
        for (int64_t j = 0; j < n; ++j) y[i * n + j] += bias[j];
      }
      write(args.y, i * n, n, y + i * n);
    }
  });
}

dnnl::memory::dims dims_of(const Shape& shape) {
  return {shape.dims().begin(), shape.dims().end()};
}

void conv2d(const ConvArgs& args, Stream stream) {
  using dnnl::memory;
  const ThreadLimit limit(stream.threads);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream queue(engine);
  const auto plain = [&](const Shape& shape) {
    return memory::desc(dims_of(shape), memory::data_type::f32, memory::format_tag::nchw);
  };
  const auto any = [&](const Shape& shape) {
    return memory::desc(dims_of(shape), memory::data_type::f32, memory::format_tag::any);
  };
  std::vector<float> x = converted(args.x, stream), weight = converted(args.weight, stream);
  std::vector<float> y(static_cast<size_t>(args.y.shape.numel()));
  std::vector<float> bias(static_cast<size_t>(args.y.shape[1]), 0.0f);
  if (args.bias.data != nullptr) bias = converted(args.bias, stream);
  const memory::desc bias_desc({args.y.shape[1]}, memory::data_type::f32, memory::format_tag::x);
  const dnnl::convolution_forward::desc description(
      dnnl::prop_kind::forward_inference, dnnl::algorithm::convolution_direct, any(args.x.shape),
      any(args.weight.shape), bias_desc, any(args.y.shape), {args.how.stride, args.how.stride},
      {args.how.pad[0], args.how.pad[1]}, {args.how.pad[2], args.how.pad[3]});
  const dnnl::convolution_forward::primitive_desc primitive(description, engine);
  // Into the layout that the primitive wants, and back.
  const auto in_layout = [&](memory& from, const memory::desc& wanted) {
    if (from.get_desc() == wanted) return from;
    memory to(wanted, engine);
    dnnl::reorder(from, to).execute(queue, from, to);
    return to;
  };
  memory x_plain(plain(args.x.shape), engine, x.data());
  memory w_plain(
      memory::desc(dims_of(args.weight.shape), memory::data_type::f32, memory::format_tag::oihw),
      engine, weight.data());
  memory y_plain(plain(args.y.shape), engine, y.data());
  memory y_memory =
      primitive.dst_desc() == y_plain.get_desc() ? y_plain : memory(primitive.dst_desc(), engine);
  dnnl::convolution_forward(primitive).execute(
      queue, {{DNNL_ARG_SRC, in_layout(x_plain, primitive.src_desc())},
              {DNNL_ARG_WEIGHTS, in_layout(w_plain, primitive.weights_desc())},
              {DNNL_ARG_BIAS, memory(bias_desc, engine, bias.data())},
              {DNNL_ARG_DST, y_memory}});
  if (y_memory != y_plain) dnnl::reorder(y_memory, y_plain).execute(queue, y_memory, y_plain);
  queue.wait();
  float* out = target(args.y, 0, y.data());
  if (out != y.data()) std::copy(y.begin(), y.end(), out);
  write(args.y, 0, args.y.shape.numel(), y.data());
}

}  // namespace

void fill_products(Kernels& table) {
  table.matmul.launch = [](const MatMulArgs& a, Stream s) {
    const bool mine = is_real(a.a.dtype) && a.b.dtype != DType::kF64 && is_real(a.y.dtype);
    mine ? matmul(a, s) : cpu_scalar_kernels().matmul.launch(a, s);
  };
  table.conv2d.launch = [](const ConvArgs& a, Stream s) {
    const bool mine = is_real(a.x.dtype) && a.weight.dtype != DType::kF64;
    mine ? conv2d(a, s) : cpu_scalar_kernels().conv2d.launch(a, s);
  };
}

}  // namespace halftone::fast
