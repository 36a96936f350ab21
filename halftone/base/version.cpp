#include "halftone/base/version.h"

namespace halftone {

const char* version() { return HALFTONE_VERSION; }

}  // namespace halftone
