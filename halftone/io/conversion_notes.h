// What a weight has that the dialect of its file has no place for, kept in the header's metadata
// "halftone.notes" so that converting there and back gives every bit again. Other tools pass it by.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "halftone/io/quantization_metadata.h"

namespace halftone {

inline constexpr const char* kNotesKey = "halftone.notes";
// Which dialect a file was written in, where its tensors alone do not tell.
inline constexpr const char* kDialectKey = "halftone.dialect";

struct ConversionNote {
  std::optional<QuantizedEntry> entry;  // options of the format, and the shape without padding
  // Values whose reciprocal is stored, where that does not give them back.
  std::optional<float> global_scale;
  std::optional<float> input_scale;
  bool full_precision = false;

  bool empty() const { return !entry && !global_scale && !input_scale && !full_precision; }
};
using ConversionNotes = std::map<std::string, ConversionNote>;  // by the weight's name

std::string notes_json(const ConversionNotes& notes);
ConversionNotes parse_conversion_notes(std::string_view text, const std::string& where);

}  // namespace halftone
