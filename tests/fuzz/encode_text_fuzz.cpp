// Any bytes are a text or an Error; a text becomes ids of the vocabulary, the same whether asked
// for alone or cut and filled up to a length.
#include <cstdint>

#include "halftone/base/error.h"
#include "halftone/io/tokenizer.h"

namespace halftone {
namespace {

void check(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<int32_t> ids = tokenizer.encode(text);
  for (const int32_t id : ids) HT_ASSERT(id >= 0 && id < tokenizer.vocab_size());
  if (!tokenizer.pad()) return;
  constexpr size_t kLength = 24;
  const std::vector<int32_t> padded = tokenizer.encode(text, kLength);
  HT_ASSERT(padded.size() == kLength);
  for (size_t i = 0; i < kLength; ++i) {
    // The last one of a text that is cut is what the template puts there.
    const bool cut = ids.size() > kLength && i + 1 == kLength;
    const int32_t expected = cut ? ids.back() : i < ids.size() ? ids[i] : *tokenizer.pad();
    HT_ASSERT(padded[i] == expected);
  }
}

}  // namespace
}  // namespace halftone

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halftone;
  static const std::filesystem::path kFolder(HALFTONE_TEST_DATA "/tokenizer");
  static const Tokenizer kTokenizers[] = {load_tokenizer(kFolder), load_tokenizer(kFolder / "clip"),
                                          load_tokenizer(kFolder / "t5"),
                                          Tokenizer::load(kFolder / "t5_file" / "tokenizer.json"),
                                          Tokenizer::load(kFolder / "t5_bytes" / "tokenizer.json")};
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const Tokenizer& tokenizer : kTokenizers) {
    try {
      check(tokenizer, text);
      HT_ASSERT(is_valid_utf8(text));
    } catch (const Error&) {
      HT_ASSERT(!is_valid_utf8(text));
    }
  }
  return 0;
}
