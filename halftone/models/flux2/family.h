// FLUX.2-klein as a row of the table of families.
#pragma once

#include "halftone/models/family.h"

namespace halftone::flux2 {

Family family();

}  // namespace halftone::flux2
