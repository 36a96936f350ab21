#include "halftone/io/conversion_notes.h"

#include <limits>

#include "halftone/io/json.h"
#include "halftone/io/refuse.h"

namespace halftone {
namespace {

using nlohmann::json;

constexpr int kNotesVersion = 1;

ConversionNote parse_note(const json& object, const std::string& where, const std::string& weight) {
  if (!object.is_object()) refuse_tensor(where, weight, "is not described by an object");
  ConversionNote note;
  for (const auto& [key, value] : object.items()) {
    if (key == "full_precision") {
      if (!value.is_boolean())
        refuse_tensor(where, weight, "'full_precision' is not true or false");
      note.full_precision = value.get<bool>();
      continue;
    }
    if (key != "global_scale" && key != "input_scale") {
      refuse_tensor(where, weight, "unknown field '" + printable(key) + "'");
    }
    const double number = value.is_number() ? value.get<double>() : 0;
    const bool fits = number <= std::numeric_limits<float>::max();
    const float scale = fits ? static_cast<float>(number) : 0;
    if (!(scale > 0))
      refuse_tensor(where, weight, fmt::format("'{}' is not a positive float", key));
    (key == "global_scale" ? note.global_scale : note.input_scale) = scale;
  }
  return note;
}

}  // namespace

std::string notes_json(const ConversionNotes& notes) {
  json weights = json::object();
  QuantizationMetadata entries;
  for (const auto& [name, note] : notes) {
    if (note.entry) entries.emplace(name, *note.entry);
    json object = json::object();
    // Floats survive: they are written with as many digits as it takes.
    if (note.global_scale) object["global_scale"] = *note.global_scale;
    if (note.input_scale) object["input_scale"] = *note.input_scale;
    if (note.full_precision) object["full_precision"] = true;
    if (!object.empty()) weights[name] = std::move(object);
  }
  json out = {{"version", kNotesVersion}, {"weights", std::move(weights)}};
  if (!entries.empty()) out["formats"] = json::parse(to_json(entries));
  return json_text(out, std::string("metadata ") + kNotesKey);
}

ConversionNotes parse_conversion_notes(std::string_view text, const std::string& where) {
  const json object = parse_json(text, where);
  if (!object.is_object() || object.value("version", json()) != json(kNotesVersion)) {
    throw Error(ErrorCode::kUnsupported, where, "{} is not of version {}", kNotesKey,
                kNotesVersion);
  }
  if (!object.contains("weights") || !object["weights"].is_object()) {
    throw Error(ErrorCode::kInvalidInput, where, "{} has no object 'weights'", kNotesKey);
  }
  ConversionNotes notes;
  for (const auto& [name, note] : object["weights"].items()) {
    notes.emplace(name, parse_note(note, where, name));
  }
  if (object.contains("formats")) {
    for (auto& [name, entry] : parse_quantization_metadata(object["formats"].dump(), where)) {
      notes[name].entry = entry;
    }
  }
  return notes;
}

}  // namespace halftone
