#include "halftone/engine/memory_ladder.h"

#include <algorithm>

#include "halftone/base/error.h"

namespace halftone {
namespace {

// One after the other: the larger of what is used again, and all of what stays.
RunningNeeds after(const RunningNeeds& a, const RunningNeeds& b) {
  return {std::max(a.shared, b.shared), a.kept + b.kept};
}

int64_t total(const RunningNeeds& needs) { return needs.shared + needs.kept; }

}  // namespace

void add_peaks(const LadderNeeds& needs, Arrangement& one) {
  const LadderNeeds::Text& text = needs.texts[one.text];
  RunningNeeds denoising = needs.denoising;
  if (one.streamed) denoising.shared += needs.streamed->slots;
  const RunningNeeds making = after(denoising, one.tiles ? *needs.tiled_decoding : *needs.decoding);
  const int64_t weights = one.streamed ? needs.streamed->picture_weights : needs.picture_weights;
  const int64_t always = needs.process + needs.adapters;
  if (!one.turns) {
    one.peak = always + text.weights + weights + total(after(text.encoding, making));
    one.text_peak = one.picture_peak = one.peak;
    return;
  }
  one.text_peak = always + text.weights + total(text.encoding);
  one.picture_peak = always + weights + total(making);
  one.peak = std::max(one.text_peak, one.picture_peak);
}

namespace {

Rung rung_of(const LadderNeeds& needs, const Arrangement& one) {
  if (one.streamed) return Rung::kStreamed;
  if (one.tiles && needs.decoding) return Rung::kTiles;
  if (needs.texts[one.text].streamed) return Rung::kStreamedText;
  if (one.text > 0) return Rung::kSmallText;
  return one.turns ? Rung::kTurns : Rung::kResident;
}

}  // namespace

std::string_view name_of(Rung rung) {
  switch (rung) {
    case Rung::kResident:
      return "resident";
    case Rung::kTurns:
      return "turns";
    case Rung::kSmallText:
      return "small-text";
    case Rung::kStreamedText:
      return "streamed-text";
    case Rung::kTiles:
      return "tiles";
    case Rung::kStreamed:
      return "streamed";
  }
  return "";
}

std::vector<Arrangement> arrangements(const LadderNeeds& needs) {
  HT_ASSERT(!needs.texts.empty() && (needs.decoding || needs.tiled_decoding));
  std::vector<Arrangement> all;
  const auto add = [&](bool turns, size_t text, bool tiles, bool streamed) {
    Arrangement one;
    one.turns = turns;
    one.text = text;
    one.tiles = tiles;
    one.streamed = streamed;
    one.rung = rung_of(needs, one);
    add_peaks(needs, one);
    all.push_back(one);
  };
  const bool whole = needs.decoding.has_value();
  for (const bool streamed : {false, true}) {
    if (streamed && !needs.streamed) continue;
    for (const bool tiles : {false, true}) {
      if (tiles ? !needs.tiled_decoding.has_value() : !whole) continue;
      if (!streamed) add(false, 0, tiles, streamed);
      for (size_t text = 0; text < needs.texts.size(); ++text) add(true, text, tiles, streamed);
    }
  }
  return all;
}

LadderChoice climb(const LadderNeeds& needs, int64_t limit) {
  const std::vector<Arrangement> all = arrangements(needs);
  LadderChoice choice{all[0], true, all[0]};
  for (const Arrangement& one : all) {
    if (one.peak > limit) continue;
    choice.chosen = one;
    return choice;
  }
  choice.fits = false;
  choice.chosen = *std::min_element(all.begin(), all.end(),
                                    [](const auto& a, const auto& b) { return a.peak < b.peak; });
  return choice;
}

}  // namespace halftone
