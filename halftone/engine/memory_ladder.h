// How a model is kept in the memory there is: a pure function from what its parts need to an
// arrangement. Rungs are tried from the one that costs nothing to the one that costs the most time
// or exactness.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace halftone {

// What running something takes besides weights.
struct RunningNeeds {
  int64_t shared = 0;  // values and scratch, which what runs next uses again
  int64_t kept = 0;    // stays for as long as the part is placed
};

// In bytes, where the model runs. What is mapped from files and shared with the system counts as
// nothing.
struct LadderNeeds {
  // Ways to keep the text encoders, in order of preference.
  struct Text {
    std::string precision;
    int64_t weights = 0;
    RunningNeeds encoding;
    bool streamed = false;  // blocks come from the host's memory one after the other
  };
  std::vector<Text> texts;
  int64_t picture_weights = 0;  // denoiser and codec
  int64_t adapters = 0;         // beside both
  RunningNeeds denoising;
  std::optional<RunningNeeds> decoding;        // whole; none: tiles are asked for
  std::optional<RunningNeeds> tiled_decoding;  // none: tiles are not to be used
  // With blocks of the denoiser coming from the host's memory one after the other.
  struct Streamed {
    int64_t picture_weights = 0;  // those that are there all the time
    int64_t slots = 0;            // while denoising, for those that come
  };
  std::optional<Streamed> streamed;  // none: they cannot
  int64_t process = 0;               // whatever else is held, always
};

enum class Rung { kResident, kTurns, kSmallText, kStreamedText, kTiles, kStreamed };
std::string_view name_of(Rung rung);  // "resident", "turns", "small-text", ...

struct Arrangement {
  Rung rung = Rung::kResident;              // the furthest of what follows
  bool turns = false;                       // encoders and what makes pictures are placed in turns
  size_t text = 0;                          // index of LadderNeeds::texts
  bool tiles = false;                       // decoding in tiles
  bool streamed = false;                    // the denoiser's blocks
  int64_t text_peak = 0, picture_peak = 0;  // while encoding, and while making pictures
  int64_t peak = 0;
};

// All that are possible, in the order in which they are tried.
std::vector<Arrangement> arrangements(const LadderNeeds& needs);

struct LadderChoice {
  Arrangement chosen;  // the first that fits; or else the one that needs the least
  bool fits = true;
  Arrangement resident;  // the first of all, for saying why it was not taken
};
LadderChoice climb(const LadderNeeds& needs, int64_t limit);

// The same arrangement with other needs.
void add_peaks(const LadderNeeds& needs, Arrangement& one);

}  // namespace halftone
