// Structs that cross the border between a program and a library of another age. Each grows at its
// end only, and a zero in a field means what it meant before there was the field.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "halftone/base/error.h"
#include "halftone/capi/status.h"

namespace halftone::capi {

// No struct will ever be as large: whoever says so has not called init.
inline constexpr size_t kMostBytes = 4096;

inline void check_size(const char* name, size_t size, size_t least) {
  if (size >= least && size <= kMostBytes) return;
  throw Error(ErrorCode::kUsage, name, "has a size of {} bytes: it must be sizeof, as init sets it",
              size);
}

// Writes as much as the program has room for; what it has more is zeroed.
template <class T>
void write_struct(const T& from, T* to, size_t size, const char* name) {
  check_not_null(to, name);
  check_size(name, size, sizeof(size_t));
  auto* const bytes = reinterpret_cast<std::byte*>(to);
  std::memset(bytes, 0, size);
  std::memcpy(bytes, &from, std::min(size, sizeof(T)));
}

// Reads as much as the program has, over what the library would fill in. What the program has more
// must be unused. The first member is the size.
template <class T>
T read_struct(const T* from, const T& defaults, const char* name) {
  check_not_null(from, name);
  const size_t size = from->size;
  check_size(name, size, sizeof(size_t) + 1);
  T out = defaults;
  const auto* const bytes = reinterpret_cast<const std::byte*>(from);
  for (size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != std::byte{0}) {
      throw Error(ErrorCode::kUnsupported, name,
                  "uses a field of a newer Halftone than this one, which is {}",
                  halftone_version());
    }
  }
  std::memcpy(static_cast<void*>(&out), bytes, std::min(size, sizeof(T)));
  out.size = sizeof(T);
  return out;
}

}  // namespace halftone::capi
