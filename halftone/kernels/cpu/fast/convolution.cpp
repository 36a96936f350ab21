// Convolutions through oneDNN, in float and in the layout that its primitive prefers.
#include <dnnl.hpp>
#include <limits>

#include "halftone/kernels/cpu/fast/gemm.h"
#include "halftone/kernels/cpu/fast/rows.h"
#include "halftone/kernels/layouts.h"
#include "halftone/kernels/workspace.h"
#include "halftone/tensor/mapped_file.h"

namespace halftone::fast {
namespace {

using dnnl::memory;

// An argument: its sizes as oneDNN orders them, whatever comes last, and how it lies.
struct Operand {
  memory::dims dims;
  memory::format_tag tag;

  memory::desc desc(memory::format_tag as) const { return {dims, memory::data_type::f32, as}; }
  memory::desc plain() const { return desc(tag); }
};
Operand picture(const Shape& shape, bool channels_last) {
  const PictureLayout p(shape, channels_last);
  return {{p.batch, p.channels, p.height, p.width},
          channels_last ? memory::format_tag::acdb : memory::format_tag::abcd};
}
Operand kernel(const ConstView& weight) {
  return {{weight.shape.dims().begin(), weight.shape.dims().end()},
          weight.channels_last ? memory::format_tag::acdb : memory::format_tag::abcd};
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
      : args_(args),
        x_(picture(args.x.shape, args.how.channels_last)),
        weight_(kernel(args.weight)),
        y_(picture(args.y.shape, args.how.channels_last)),
        engine_(dnnl::engine::kind::cpu, 0),
        primitive_(describe()) {}

  int64_t workspace() const {
    int64_t bytes = aligned_bytes(y_.dims[1] * 4) + size(primitive_.scratchpad_desc());
    if (args_.x.dtype != DType::kF32) bytes += size(x_.plain());
    if (args_.weight.dtype != DType::kF32) bytes += size(weight_.plain());
    if (args_.y.dtype != DType::kF32) bytes += size(y_.plain());
    for (const auto& [wanted, given] : {std::pair{primitive_.src_desc(), x_.plain()},
                                        std::pair{primitive_.weights_desc(), weight_.plain()},
                                        std::pair{primitive_.dst_desc(), y_.plain()}}) {
      if (wanted != given) bytes += size(wanted);
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
    const auto operand = [&](const ConstView& x, const Operand& as, const memory::desc& wanted) {
      memory from;
      if (x.dtype == DType::kF32) {
        from = memory(as.plain(), engine_, const_cast<void*>(x.data));
      } else {
        from = take(as.plain());
        to_float(x, static_cast<float*>(from.get_data_handle()), stream);
      }
      if (wanted == from.get_desc()) return from;
      memory to = take(wanted);
      dnnl::reorder(from, to).execute(queue, from, to);
      return to;
    };
    float* bias = workspace.floats(y_.dims[1]);
    std::fill_n(bias, y_.dims[1], 0.0f);
    if (args_.bias.data != nullptr) to_float(args_.bias, bias, stream);
    const memory x = operand(args_.x, x_, primitive_.src_desc());
    const memory weight = operand(args_.weight, weight_, primitive_.weights_desc());
    memory y =
        args_.y.dtype == DType::kF32 ? memory(y_.plain(), engine_, args_.y.data) : take(y_.plain());
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
  static int64_t size(const memory::desc& desc) {
    return aligned_bytes(static_cast<int64_t>(desc.get_size()));
  }

  dnnl::convolution_forward::primitive_desc describe() const {
    const auto any = memory::format_tag::any;
    const ConvAttributes& how = args_.how;
    const dnnl::convolution_forward::desc description(
        dnnl::prop_kind::forward_inference, dnnl::algorithm::convolution_direct,
        x_.desc(how.channels_last ? x_.tag : any), weight_.desc(any),
        memory::desc({y_.dims[1]}, memory::data_type::f32, memory::format_tag::x),
        y_.desc(how.channels_last ? y_.tag : any), {how.stride, how.stride},
        {how.pad[0], how.pad[1]}, {how.pad[2], how.pad[3]});
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    return {description, attributes, engine_};
  }

  const ConvArgs& args_;
  Operand x_, weight_, y_;
  dnnl::engine engine_;
  dnnl::convolution_forward::primitive_desc primitive_;
};

// oneDNN counts in 32 bits: the pixels of a plane with AVX2, those of a block of 16 channels with
// AVX-512. It divides by what is left of them.
bool is_countable(const PictureLayout& picture) {
  return picture.plane() <= std::numeric_limits<int32_t>::max() / 16;
}

bool is_mine(const ConvArgs& a) {
  const bool last = a.how.channels_last;
  return is_real(a.x.dtype) && is_real(a.y.dtype) && a.weight.dtype != DType::kF64 &&
         a.bias.dtype != DType::kF64 && a.y.shape.numel() > 0 && a.shift.data == nullptr &&
         a.addend.data == nullptr && is_countable({a.x.shape, last}) &&
         is_countable({a.y.shape, last});
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
