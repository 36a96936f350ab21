// How exceptions become codes, and where their words are kept.
#pragma once

#include <functional>

#include "halftone/halftone_c.h"

namespace halftone::capi {

// Runs the body of a call; nothing leaves it but a status.
halftone_status guarded(const std::function<void()>& body) noexcept;

// An Error of the caller's where it is null.
void check_not_null(const void* argument, const char* name);

}  // namespace halftone::capi
