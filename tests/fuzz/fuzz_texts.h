// Texts that reach every step of a tokenizer, for the targets that make tokenizers of damaged
// files.
#pragma once

#include <string>
#include <vector>

#include "halftone/base/error.h"
#include "halftone/io/tokenizer.h"

namespace halftone {

inline void encode_hard_texts(const Tokenizer& tokenizer) {
  static const std::vector<std::string> kTexts = {
      "",
      "a \n'S <|im_end|> <extra_id_0> </s> \xC3\xA9 1 <|endoftext|>",
      // Ligatures, full-width letters, marks, a cluster that is cut, NUL, an emoji.
      "\xEF\xAC\x81n \xEF\xBC\xA1\xEF\xBD\x82 e\xCC\x81\xCC\xA3 \xC2\xBD\xCC\x81 \xC4\xB0 "
      "\xEF\xB7\xBA",
      std::string("a") + '\0' +
          "b \x01 \xE2\x96\x81 \xF0\x9F\x91\x8D\xF0\x9F\x8F\xBD \xE3\x80\x80 ab abab",
  };
  for (const std::string& text : kTexts) {
    for (const int32_t id : tokenizer.encode(text)) {
      HT_ASSERT(id >= 0 && id < tokenizer.vocab_size());
    }
  }
  if (tokenizer.pad()) HT_ASSERT(tokenizer.encode(kTexts[1], 40).size() == 40);
}

}  // namespace halftone
