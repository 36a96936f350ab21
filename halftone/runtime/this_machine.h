// What tells this machine, and the processes that it can see, from others.
#pragma once

#include <string>

namespace halftone {

// The same text in processes that share devices and know each other's numbers.
std::string this_machine();

}  // namespace halftone
