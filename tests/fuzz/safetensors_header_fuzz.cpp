// Any bytes are either a file whose tensors lie inside it, or an Error; and what was read can be
// written and read again.
#include <cstdint>

#include "halftone/base/error.h"
#include "halftone/io/dialect.h"
#include "halftone/io/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halftone;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  SafetensorsHeader header;
  try {
    header = parse_safetensors_header(bytes, "fuzz");
  } catch (const Error&) {
    return 0;
  }
  int64_t covered = 0;
  std::vector<const TensorEntry*> entries;
  for (const TensorEntry& tensor : header.tensors) {
    HT_ASSERT(tensor.begin == covered && tensor.end >= tensor.begin);
    HT_ASSERT(tensor.shape.checked_bytes(tensor.dtype) == tensor.byte_size());
    covered = tensor.end;
    entries.push_back(&tensor);
  }
  HT_ASSERT(header.data_offset + covered == static_cast<int64_t>(size));
  try {
    detect_dialect(entries, header.metadata, "fuzz");
  } catch (const Error&) {  // a marker that cannot be read
  }
  std::string again = write_safetensors_header(header.tensors, header.metadata);
  again.resize(again.size() + static_cast<size_t>(covered));
  const auto second = parse_safetensors_header(std::as_bytes(std::span(again)), "again");
  HT_ASSERT(second.tensors.size() == header.tensors.size() && second.metadata == header.metadata);
  return 0;
}
