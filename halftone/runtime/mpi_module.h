// What the program asks of MPI, as functions of a module of its own: a program that was started
// alone loads neither. Nothing is thrown across.
#pragma once

#include <cstddef>

namespace halftone {

struct MpiModule {
  struct Place {
    int rank = 0, size = 1, local_rank = 0, local_size = 1;
    bool threads = true;  // what follows may be called by any thread
  };
  Place (*join)();
  // Sums of float or of double, one at a time. `stop` is asked while others are waited for; false
  // where it ended the wait, or where others cannot be reached.
  bool (*sum)(void* values, size_t count, bool doubles, bool (*stop)(const void*), const void* of);
  // Whether any is to stop; the others are told, once, that this one is.
  bool (*stopping)(bool own);
  void (*leave)();    // all of them do
  bool (*give_up)();  // whether all did
  void (*abort)();    // ends the others
};

inline constexpr const char* kMpiModuleFile = "libhalftone_mpi.so";
inline constexpr const char* kMpiModuleFunction = "halftone_mpi_module";
using MpiModuleFunction = const MpiModule* (*)();

}  // namespace halftone
