#include "halftone/io/model_hash.h"

#if defined(HALFTONE_XXHASH)
#define XXH_INLINE_ALL
#include <xxhash.h>
#endif

#include <fmt/format.h>

#include <algorithm>
#include <memory>

namespace halftone {

#if defined(HALFTONE_XXHASH)

std::string model_hash(std::span<const Checkpoint* const> checkpoints) {
  std::vector<const SafetensorsFile*> files;
  for (const Checkpoint* checkpoint : checkpoints) {
    for (const auto& file : checkpoint->files()) files.push_back(file.get());
  }
  std::sort(files.begin(), files.end(), [](const auto* a, const auto* b) {
    return a->path().filename() != b->path().filename()
               ? a->path().filename() < b->path().filename()
               : a->path() < b->path();
  });
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  XXH3_128bits_reset(state.get());
  for (const SafetensorsFile* file : files) {
    const auto bytes = file->all_bytes();
    XXH3_128bits_update(state.get(), bytes.data(), bytes.size());
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string text_hash(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}
#else
// FNV-1a of 128 bits: slower, but what is told apart by it stays apart.
std::string text_hash(std::string_view text) {
  __extension__ using Wide = unsigned __int128;
  constexpr Wide kPrime = (Wide{1} << 88) + 0x13B;
  Wide hash = (Wide{0x6C62272E07BB0142} << 64) + 0x62B821756295C58D;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
  return fmt::format("{:016x}{:016x}", static_cast<uint64_t>(hash >> 64),
                     static_cast<uint64_t>(hash));
}
std::string model_hash(std::span<const Checkpoint* const>) { return "unknown"; }
#endif

}  // namespace halftone
