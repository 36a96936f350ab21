// Any bytes are a table of replacements or an Error, and what it makes of a text is UTF-8, or an
// Error. The input is the table; its last bytes are also a text.
#include <cstdint>

#include "halftone/base/error.h"
#include "halftone/io/charsmap.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halftone;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string_view tail = bytes.substr(size - std::min<size_t>(size, 24));
  try {
    const Charsmap table(bytes, "fuzz", "precompiled_charsmap");
    for (const std::string_view text :
         {tail,
          std::string_view("a\xC2\xA0 \xEF\xAC\x81\xCC\x81 e\xCC\x81 \xEF\xBC\xA1\xE2\x91\xA0"),
          std::string_view("\x01\x7F\t\n\xE2\x80\x8B\xF0\x9D\x90\x80\xEF\xB7\xBA")}) {
      if (is_valid_utf8(text)) HT_ASSERT(is_valid_utf8(table.apply(text)));
    }
  } catch (const Error&) {
  }
  try {
    const std::string decoded = decode_base64(bytes, "fuzz", "field");
    HT_ASSERT(decoded.size() <= size / 4 * 3);
  } catch (const Error&) {
  }
  return 0;
}
