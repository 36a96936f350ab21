// An index never leads outside its folder.
#include <cstdint>

#include "halftone/base/error.h"
#include "halftone/io/checkpoint.h"
#include "halftone/io/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halftone;
  try {
    const nlohmann::json json = parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
    const auto map = checkpoint_index(json, "fuzz");
    for (const auto& [tensor, shard] : map) {
      const std::filesystem::path path = std::filesystem::path("/folder") / shard;
      HT_ASSERT(path.lexically_normal().string().starts_with("/folder"));
    }
  } catch (const Error&) {
  }
  return 0;
}
