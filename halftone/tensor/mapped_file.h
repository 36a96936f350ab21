// Files that are read in place. Another program may truncate one meanwhile; reading what is no
// longer there raises SIGBUS, which ends the process unless it has asked to survive it.
#pragma once

#include <filesystem>
#include <memory>

#include "halftone/tensor/storage.h"

namespace halftone {

// For the whole process, from now on: lost parts of mapped files read as zeros, and
// Storage::check_intact tells. Programs call it; a library leaves it to them.
void survive_truncated_files();

// The handler needs a stack of its own on every thread that reads mapped files inside matrix
// products, which point the thread's stack elsewhere. Cheap where the thread has one already, and
// where nobody asked to survive.
void prepare_thread_for_truncated_files();

}  // namespace halftone
