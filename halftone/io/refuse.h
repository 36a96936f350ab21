#pragma once

#include <string>

#include "halftone/base/error.h"

namespace halftone {

// A file that is not what it says it is.
[[noreturn]] inline void refuse_file(const std::string& file, const std::string& reason) {
  throw Error(ErrorCode::kInvalidInput, file, "{}", reason);
}

// One tensor of it that is not.
[[noreturn]] inline void refuse_tensor(const std::string& file, const std::string& tensor,
                                       const std::string& reason) {
  throw Error(ErrorCode::kInvalidInput, file, "tensor '{}': {}", printable(tensor), reason);
}

}  // namespace halftone
