// Z-Image as a row of the table of families.
#pragma once

#include "halftone/models/family.h"

namespace halftone::zimage {

Family family();

// What the text encoder reads where the tokenizer has no template of its own: the prompt as a
// user's turn, and the start of the answer.
std::string chat_prompt(const std::string& prompt);

}  // namespace halftone::zimage
