// FLUX.1 (dev and schnell) as a row of the table of families.
#pragma once

#include "halftone/models/family.h"

namespace halftone::flux1 {

Family family();

}  // namespace halftone::flux1
