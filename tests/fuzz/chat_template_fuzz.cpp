// Any bytes are a chat template or an Error; a template gives a text, or an Error, in little time.
#include <cstdint>

#include "halftone/base/error.h"
#include "halftone/io/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halftone;
  const std::string source(reinterpret_cast<const char*>(data), size);
  try {
    const ChatTemplate chat(source, {{"eos_token", "<|im_end|>"}}, "fuzz");
    for (const char* message : {"", "a red apple"}) chat.render(message);
  } catch (const Error&) {
  }
  return 0;
}
