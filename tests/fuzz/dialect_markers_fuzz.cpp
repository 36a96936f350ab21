// Markers of other tools: what is accepted is a known format, and notes survive being written
// again.
#include <cstdint>

#include "halftone/base/error.h"
#include "halftone/io/conversion_notes.h"
#include "halftone/io/dialect_markers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halftone;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto attempt = [](const auto& parse) {
    try {
      parse();
    } catch (const Error&) {
    }
  };
  attempt([&] {
    const ComfyMarker marker = parse_comfy_marker(text, "fuzz");
    HT_ASSERT(comfy_marker_json(marker.format, marker.full_precision).has_value());
  });
  attempt([&] {
    for (const auto& [layer, marker] : parse_comfy_metadata(text, "fuzz")) {
      HT_ASSERT(marker.format.quantized());
    }
  });
  attempt([&] { HT_ASSERT(!parse_torchao_marker(text, "fuzz").type.empty()); });
  ConversionNotes notes;
  attempt([&] { notes = parse_conversion_notes(text, "fuzz"); });
  const ConversionNotes again = parse_conversion_notes(notes_json(notes), "again");
  for (const auto& [name, note] : notes) {
    if (note.empty()) continue;
    const ConversionNote& copy = again.at(name);
    HT_ASSERT(copy.global_scale == note.global_scale && copy.input_scale == note.input_scale &&
              copy.full_precision == note.full_precision &&
              copy.entry.has_value() == note.entry.has_value());
  }
  return 0;
}
