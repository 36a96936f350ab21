// Stable Diffusion 3 and 3.5 as a row of the table of families.
#pragma once

#include "halftone/models/family.h"

namespace halftone::sd3 {

Family family();

}  // namespace halftone::sd3
