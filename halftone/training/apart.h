// Work that is finished even where this process is ended by force meanwhile, as mpirun does with
// all that it has started about a second after Ctrl-C.
#pragma once

#include <functional>

namespace halftone {

// In a process of its own, on this one's memory as it is now, which is waited for; what it throws
// as an Error is thrown here. Where no process can be had, it is done here.
// It may use files, and no thread but its own: neither OpenMP nor a device are there.
void run_apart(const std::function<void()>& work);

}  // namespace halftone
