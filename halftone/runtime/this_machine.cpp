#include "halftone/runtime/this_machine.h"

#include <filesystem>
#include <fstream>

namespace halftone {

std::string this_machine() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code ignored;
  return boot + " " + std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
}

}  // namespace halftone
