// Any bytes are a sentencepiece model or an Error, and any model is a tokenizer or an Error.
#include <cstdint>

#include "halftone/io/sentencepiece_file.h"
#include "halftone/io/tokenizer_settings.h"
#include "tests/fuzz/fuzz_texts.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halftone;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  TokenizerFiles files{"fuzz", {{"spiece.model", bytes}}};
  files.content["tokenizer_config.json"] = R"({"tokenizer_class": "T5Tokenizer", "extra_ids": 2})";
  try {
    parse_sentencepiece(bytes, "fuzz");
    encode_hard_texts(make_tokenizer(files));
  } catch (const Error&) {
  }
  return 0;
}
