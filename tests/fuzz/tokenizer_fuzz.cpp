// Any JSON is a tokenizer or an Error; a tokenizer turns any UTF-8 text into ids of its vocabulary.
#include <cstdint>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/io/json.h"
#include "halftone/io/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halftone;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    const auto tokenizer = Tokenizer::parse(parse_json(input, "fuzz"), "fuzz");
    for (const int32_t id : tokenizer.encode("a \n'S <|im_end|> \xC3\xA9 1")) {
      HT_ASSERT(id >= 0 && id < tokenizer.vocab_size());
    }
  } catch (const Error&) {
  }
  return 0;
}
