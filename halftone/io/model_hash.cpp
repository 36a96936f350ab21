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
std::string text_hash(std::string_view) { return "unknown"; }
std::string model_hash(std::span<const Checkpoint* const>) { return "unknown"; }
#endif

}  // namespace halftone
