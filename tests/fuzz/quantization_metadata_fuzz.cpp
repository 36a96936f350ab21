// What is accepted is a valid format with a sane shape, and survives being written again.
#include <cstdint>

#include "halftone/base/error.h"
#include "halftone/io/quantization_metadata.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halftone;
  QuantizationMetadata metadata;
  try {
    metadata = parse_quantization_metadata({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const Error&) {
    return 0;
  }
  const auto again = parse_quantization_metadata(to_json(metadata), "again");
  HT_ASSERT(again.size() == metadata.size());
  for (const auto& [name, entry] : metadata) {
    HT_ASSERT(why_invalid(entry.format).empty());
    HT_ASSERT(again.at(name).format == entry.format && again.at(name).shape == entry.shape);
  }
  return 0;
}
