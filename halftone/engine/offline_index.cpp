#include "halftone/engine/offline_index.h"

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/text.h"
#include "halftone/engine/picture_text.h"

namespace halftone {
namespace {

using nlohmann::ordered_json;

PngText settings_of(const PngText& text) {
  PngText settings;
  for (const auto& entry : text) {
    if (!is_outcome(entry.first)) settings.push_back(entry);
  }
  return settings;
}

ordered_json entry_of(const OfflineLine& line, const OfflinePicture& picture,
                      const LoadedModel& loaded, const OfflineList& list) {
  ordered_json entry = {{"line", line.number}, {"id", line.id}};
  if (!line.error.empty()) {  // nothing else of it can be relied on
    entry["error"] = line.error;
    return entry;
  }
  const GenerateRequest& request = line.request;
  entry["index"] = picture.index;
  if (picture.done) entry["file"] = picture.file;
  if (!picture.done) entry["error"] = picture.error;
  entry["prompt"] = request.prompt;
  entry["negative"] = request.negative ? ordered_json(*request.negative) : ordered_json();
  entry["seed"] = request.seed + static_cast<uint64_t>(picture.index);
  entry["size"] = fmt::format("{}x{}", request.width, request.height);
  entry["steps"] = request.steps;
  entry["guidance"] = short_number(request.guidance);
  if (request.true_cfg > 0) entry["true_cfg"] = short_number(request.true_cfg);
  if (request.cache > 0) {
    entry["cache"] = short_number(request.cache);
    // From its file: another run may have made it.
    if (picture.done) {
      entry["reused_steps"] = reused_steps(read_png_header(list.path_of(picture)).text);
    }
  }
  if (!request.skip.layers.empty()) {
    entry["skip_layers"] = layers_text(request.skip.layers);
    entry["skip_layer_scale"] = short_number(request.skip.scale);
  }
  if (request.original.given()) {
    const PictureSizes told = told_by(request).sizes;
    entry["original_size"] = original_size_text(told);
    entry["crop"] = crop_text(told);
  }
  entry["scheduler"] = line.scheduler.empty() ? ordered_json() : ordered_json(line.scheduler);
  entry["model"] = loaded.path;
  entry["model_hash"] = list.hash;
  entry["precision"] = loaded.precision.used;
  if (loaded.tells_text_precision()) {
    entry["text_precision"] = loaded.text_precision.used;
  }
  entry["loras"] = ordered_json::array();
  for (const LoraChoice& lora : line.loras) {
    entry["loras"].push_back({{"name", lora.file}, {"strength", short_number(lora.strength)}});
  }
  return entry;
}

}  // namespace

PngText OfflineList::text_of(const OfflinePicture& picture, const LoadedModel& loaded) const {
  return picture_text(loaded, request_of(picture), hash, picture.index);
}

std::string why_make(const std::filesystem::path& file, const GenerateRequest& request,
                     const PngText& text) {
  if (!path_exists(file)) return "missing";
  PngImage found;
  try {
    found = read_png_header(file);
  } catch (const Error& error) {
    return error.message();
  }
  if (found.width != request.width || found.height != request.height) {
    return fmt::format("its size was {}x{}", found.width, found.height);
  }
  const PngText was = settings_of(found.text), now = settings_of(text);
  for (size_t i = 0; i < now.size(); ++i) {
    if (i < was.size() && was[i] == now[i]) continue;
    const bool has = i < was.size() && was[i].first == now[i].first;
    if (has && now[i].first == "settings")
      return "its schedule, adapters or configurations were others";
    return has ? fmt::format("its {} was '{}'", now[i].first, printable(was[i].second, 60))
               : fmt::format("it had no {}", now[i].first);
  }
  return was.size() == now.size() ? ""
                                  : fmt::format("it had a {}", printable(was[now.size()].first));
}

std::string offline_index(const OfflineList& list, const LoadedModel& loaded) {
  std::string text;
  for (const OfflinePicture& picture : list.pictures) {
    if (!picture.done && picture.error.empty()) continue;
    const ordered_json entry = entry_of(list.lines[picture.line], picture, loaded, list);
    text += entry.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  return text;
}

}  // namespace halftone
