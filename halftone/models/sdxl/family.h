// SDXL as a row of the table of families.
#pragma once

#include "halftone/models/family.h"

namespace halftone::sdxl {

Family family();

}  // namespace halftone::sdxl
