// Convolutions through oneDNN, in float and in the layout that its primitive prefers.
#include <dnnl.hpp>
#include <limits>

#include "halftone/kernels/cpu/fast/gemm.h"
#include "halftone/kernels/cpu/fast/rows.h"
#include "halftone/kernels/workspace.h"
#include "halftone/tensor/mapped_file.h"

namespace halftone::fast {
namespace {

using dnnl::memory;

memory::dims dims_of(const Shape& shape) { return {shape.dims().begin(), shape.dims().end()}; }
memory::desc desc_of(const Shape& shape, memory::format_tag tag) {
  return {dims_of(shape), memory::data_type::f32, tag};
}

void to_float(const ConstView& x, float* out, Stream stream) {
  parallel_for(stream.threads, x.shape.numel(), kValuesPerThread, [&](int64_t begin, int64_t end) {
    const float* in = read(x, begin, end - begin, out + begin);
    if (in != out + begin) std::copy_n(in, end - begin, out + begin);
  });
}

// A convolution of these shapes, and the memory that it needs besides its arguments.
class Convolution {
 public:
  explicit Convolution(const ConvArgs& args)
      : args_(args), engine_(dnnl::engine::kind::cpu, 0), primitive_(describe(args, engine_)) {}

  int64_t workspace() const {
    int64_t bytes = aligned_bytes(args_.y.shape[1] * 4) + size(primitive_.scratchpad_desc());
    if (args_.x.dtype != DType::kF32) bytes += size(plain(args_.x.shape));
    if (args_.weight.dtype != DType::kF32) bytes += size(plain(args_.weight.shape));
    if (args_.y.dtype != DType::kF32) bytes += size(plain(args_.y.shape));
    for (const auto& [wanted, shape] : {std::pair{primitive_.src_desc(), args_.x.shape},
                                        std::pair{primitive_.weights_desc(), args_.weight.shape},
                                        std::pair{primitive_.dst_desc(), args_.y.shape}}) {
      if (wanted != plain(shape)) bytes += size(wanted);
    }
    return bytes;
  }

  void run(Stream stream) {
    Workspace workspace(stream);
    dnnl::stream queue(engine_);
    const auto take = [&](const memory::desc& desc) {
      return memory(desc, engine_, workspace.bytes(static_cast<int64_t>(desc.get_size())));
    };
    // As float, then in the layout that the primitive wants.
    const auto operand = [&](const ConstView& x, const memory::desc& wanted) {
      memory from;
      if (x.dtype == DType::kF32) {
        from = memory(plain(x.shape), engine_, const_cast<void*>(x.data));
      } else {
        from = take(plain(x.shape));
        to_float(x, static_cast<float*>(from.get_data_handle()), stream);
      }
      if (wanted == from.get_desc()) return from;
      memory to = take(wanted);
      dnnl::reorder(from, to).execute(queue, from, to);
      return to;
    };
    float* bias = workspace.floats(args_.y.shape[1]);
    std::fill_n(bias, args_.y.shape[1], 0.0f);
    if (args_.bias.data != nullptr) to_float(args_.bias, bias, stream);
    const memory x = operand(args_.x, primitive_.src_desc());
    const memory weight = operand(args_.weight, primitive_.weights_desc());
    memory y = args_.y.dtype == DType::kF32 ? memory(plain(args_.y.shape), engine_, args_.y.data)
                                            : take(plain(args_.y.shape));
    memory result = primitive_.dst_desc() == y.get_desc() ? y : take(primitive_.dst_desc());
    dnnl::convolution_forward(primitive_)
        .execute(queue, {{DNNL_ARG_SRC, x},
                         {DNNL_ARG_WEIGHTS, weight},
                         {DNNL_ARG_BIAS, memory(primitive_.bias_desc(), engine_, bias)},
                         {DNNL_ARG_DST, result},
                         {DNNL_ARG_SCRATCHPAD, take(primitive_.scratchpad_desc())}});
    if (result != y) dnnl::reorder(result, y).execute(queue, result, y);
    queue.wait();
    const auto* values = static_cast<const float*>(y.get_data_handle());
    const int64_t n = args_.y.shape.numel();
    parallel_for(stream.threads, n, kValuesPerThread, [&](int64_t begin, int64_t end) {
      write(args_.y, begin, end - begin, values + begin);
    });
  }

 private:
  static memory::desc plain(const Shape& shape) { return desc_of(shape, memory::format_tag::abcd); }
  static int64_t size(const memory::desc& desc) {
    return aligned_bytes(static_cast<int64_t>(desc.get_size()));
  }

  static dnnl::convolution_forward::primitive_desc describe(const ConvArgs& args,
                                                            const dnnl::engine& engine) {
    const auto any = memory::format_tag::any;
    const dnnl::convolution_forward::desc description(
        dnnl::prop_kind::forward_inference, dnnl::algorithm::convolution_direct,
        desc_of(args.x.shape, any), desc_of(args.weight.shape, any),
        memory::desc({args.y.shape[1]}, memory::data_type::f32, memory::format_tag::x),
        desc_of(args.y.shape, any), {args.how.stride, args.how.stride},
        {args.how.pad[0], args.how.pad[1]}, {args.how.pad[2], args.how.pad[3]});
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    return {description, attributes, engine};
  }

  const ConvArgs& args_;
  dnnl::engine engine_;
  dnnl::convolution_forward::primitive_desc primitive_;
};

// oneDNN counts in 32 bits: the pixels of a plane with AVX2, those of a block of 16 channels with
// AVX-512. It divides by what is left of them.
bool is_countable(const Shape& planes) {
  return planes[2] * planes[3] <= std::numeric_limits<int32_t>::max() / 16;
}

bool is_mine(const ConvArgs& a) {
  return is_real(a.x.dtype) && is_real(a.y.dtype) && a.weight.dtype != DType::kF64 &&
         a.bias.dtype != DType::kF64 && a.y.shape.numel() > 0 && is_countable(a.x.shape) &&
         is_countable(a.y.shape);
}

// What oneDNN throws, in our words.
template <class Body>
auto with_onednn(const ConvArgs& args, int threads, const Body& body) {
  require_memory_for_products(threads);
  parallel_for(threads, threads, 1, [](int64_t, int64_t) { prepare_thread_for_truncated_files(); });
  const ThreadLimit limit(threads);
  try {
    return body();
  } catch (const dnnl::error& error) {
    throw Error(
        error.status == dnnl_out_of_memory ? ErrorCode::kOutOfMemory : ErrorCode::kUnsupported,
        "conv2d", "oneDNN did not apply {} to {}: {}", args.weight.shape, args.x.shape,
        error.what());
  }
}

}  // namespace

void fill_convolution(Kernels& table) {
  table.conv2d.prefer({is_mine,
                       [](const ConvArgs& a, Stream s) {
                         with_onednn(a, s.threads, [&] { Convolution(a).run(s); });
                       },
                       [](const ConvArgs& a, const Stream& s) -> int64_t {
                         return with_onednn(a, s.threads,
                                            [&] { return Convolution(a).workspace(); });
                       }});
}

}  // namespace halftone::fast
