#include "halftone/engine/imagined.h"

#include <sys/mman.h>

#include <algorithm>

namespace halftone {
namespace {

class ImaginedStorage final : public Storage {
 public:
  ImaginedStorage(std::byte* data, size_t size, Device device)
      : Storage(data, size, /*mapped=*/false, device) {}
  ~ImaginedStorage() override { ::munmap(data_, std::max<size_t>(size_, 1)); }
};

Tensor imagine_tensor(DType dtype, const Shape& shape) {
  return {imagine(shape.checked_bytes(dtype).value()), 0, dtype, shape};
}

QuantizedTensor imagine_matrix(const Format& format, const Shape& shape) {
  QuantizedTensor q{format, shape, 1, {}, {}, {}};
  q.codes = imagine_tensor(code_dtype(format), {shape[0], format.code_bytes(shape[1])});
  q.scales = imagine_tensor(scale_dtype(format), scale_shape(format, shape[0], shape[1]));
  if (format.global_scale) q.global_scale = imagine_tensor(DType::kF32, {1});
  return q;
}

}  // namespace

std::shared_ptr<Storage> imagine(int64_t bytes, Device device) {
  const auto size = static_cast<size_t>(bytes);
  void* const data = ::mmap(nullptr, std::max<size_t>(size, 1), PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    throw Error(ErrorCode::kOutOfMemory, "memory", "could not reserve {} bytes of addresses",
                bytes);
  }
  return std::make_shared<ImaginedStorage>(static_cast<std::byte*>(data), size, device);
}

void imagine_conversion(Weights& weights, const QuantizeReport& report) {
  for (const auto& linear : report.converted) {
    Weight& weight = weights.at(linear.weight);
    if (const auto* tensor = std::get_if<Tensor>(&weight)) {
      weight = imagine_matrix(linear.format, tensor->shape());
    }
  }
}

}  // namespace halftone
