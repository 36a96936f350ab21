// Any bytes are either a file whose tensors lie inside it, or an Error; and what was read can be
// written and read again.
#include <cstdint>

#include "halftone/base/error.h"
#include "halftone/io/dialect.h"
#include "halftone/io/safetensors_header.h"

namespace halftone {
namespace {

void check(std::span<const std::byte> bytes) {
  SafetensorsHeader header;
  try {
    header = parse_safetensors_header(bytes, "fuzz");
  } catch (const Error&) {
    return;
  }
  int64_t covered = 0;
  std::vector<const TensorEntry*> entries;
  for (const TensorEntry& tensor : header.tensors) {
    HT_ASSERT(tensor.begin == covered && tensor.end >= tensor.begin);
    HT_ASSERT(tensor.shape.checked_bytes(tensor.dtype) == tensor.byte_size());
    covered = tensor.end;
    entries.push_back(&tensor);
  }
  HT_ASSERT(header.data_offset + covered == static_cast<int64_t>(bytes.size()));
  try {
    detect_dialect(entries, header.metadata, "fuzz");
  } catch (const Error&) {  // a marker that cannot be read
  }
  std::string again = write_safetensors_header(header.tensors, header.metadata, "fuzz");
  again.resize(again.size() + static_cast<size_t>(covered));
  const auto second = parse_safetensors_header(std::as_bytes(std::span(again)), "again");
  HT_ASSERT(second.tensors.size() == header.tensors.size() && second.metadata == header.metadata);
}

// The input's JSON under a length that fits and with as many bytes of data as its first two bytes
// say: mutations reach the fields, instead of failing at the length.
void check_framed(std::span<const std::byte> bytes) {
  if (bytes.size() < 8) return;
  const auto data = static_cast<size_t>(bytes[6]) + 256 * static_cast<size_t>(bytes[7]);
  const size_t json = bytes.size() - 8;
  std::string framed(8, '\0');
  for (int i = 0; i < 8; ++i) framed[i] = static_cast<char>(json >> (8 * i) & 0xFF);
  framed.append(reinterpret_cast<const char*>(bytes.data()) + 8, json);
  framed.resize(framed.size() + data);
  check(std::as_bytes(std::span(framed)));
}

}  // namespace
}  // namespace halftone

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  halftone::check(bytes);
  halftone::check_framed(bytes);
  return 0;
}
