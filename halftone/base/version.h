// The version of Halftone: "0.1.0".
#pragma once

namespace halftone {

const char* version();

}  // namespace halftone
