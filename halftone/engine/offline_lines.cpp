#include "halftone/engine/offline_lines.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/engine/checks.h"
#include "halftone/io/config_reader.h"
#include "halftone/io/json.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostPixels = 65536;  // of a side, as check() has it

// What is wrong with a line, as a field and the reason.
[[noreturn]] void fail_field(const char* field, const std::string& reason) {
  throw Error(ErrorCode::kInvalidInput, field, "{}", reason);
}

void check_text_field(const char* field, const std::string& text) {
  if (text.find('\0') != std::string::npos) fail_field(field, "holds NUL");
}

// A name of a file in the folder of results, and nothing else.
void check_id(const std::string& id) {
  constexpr size_t kMost = 200;
  if (id.empty()) fail_field("id", "is empty");
  if (id.size() > kMost) fail_field("id", fmt::format("has more than {} bytes", kMost));
  if (id[0] == '.') fail_field("id", "begins with a dot");
  const bool odd =
      std::ranges::any_of(id, [](unsigned char c) { return c < 32 || c == 127 || c == '/'; });
  if (odd) fail_field("id", fmt::format("'{}' holds what no name may hold", printable(id)));
}

std::pair<int64_t, int64_t> size_of(const std::string& text) {
  const char* const end = text.data() + text.size();
  uint32_t width = 0, height = 0;
  const auto [times, wrong] = std::from_chars(text.data(), end, width);
  const bool has_height = wrong == std::errc() && times != end && *times == 'x';
  const auto [stop, also_wrong] = std::from_chars(has_height ? times + 1 : end, end, height);
  if (!has_height || also_wrong != std::errc() || stop != end) {
    fail_field("size", fmt::format("'{}' is not WIDTHxHEIGHT", printable(text)));
  }
  return {width, height};
}

// Adapters as the server's API names them, or as the flag does.
std::vector<LoraChoice> loras_of(const ConfigReader& line) {
  std::vector<LoraChoice> loras;
  constexpr size_t kMost = 8;
  if (line.list("loras").size() > kMost) {
    line.fail("loras", fmt::format("has more than {} entries", kMost));
  }
  for (const nlohmann::json& item : line.list("loras")) {
    LoraChoice choice;
    if (item.is_string()) {
      choice.file = item.get<std::string>();
    } else {
      const ConfigReader lora(item, "loras");
      lora.require({"name"});
      choice.file = lora.text("name");
      choice.strength = static_cast<float>(lora.number("strength", 1, -10, 10));
      lora.finish();
    }
    loras.push_back(choice);
  }
  return loras;
}

class LineReader {
 public:
  LineReader(const OfflineDefaults& defaults, const ModelParts& model)
      : defaults_(defaults), model_(model), usual_(model.recommended) {}

  void read(const nlohmann::json& json, OfflineLine& line) const {
    const ConfigReader fields(json, "");
    read_names(fields, line);
    for (const char* of_all : {"model", "precision"}) {
      if (fields.has(of_all)) {
        fail_field(of_all, fmt::format("is the same for all lines: give --{}", of_all));
      }
    }
    GenerateRequest& request = line.request;
    request.prompt = fields.text("prompt");
    if (!fields.has("size")) {
      const auto size = defaults_.size.value_or(std::pair{usual_.width, usual_.height});
      request.width = fields.integer("width", size.first, 1, kMostPixels);
      request.height = fields.integer("height", size.second, 1, kMostPixels);
    } else if (fields.has("width") || fields.has("height")) {
      fail_field("size", "and width or height say the same");
    } else {
      std::tie(request.width, request.height) = size_of(fields.text("size"));
    }
    request.steps = static_cast<int>(fields.integer("steps", steps(), 1, kMostSteps));
    request.guidance = static_cast<float>(fields.number("guidance", guidance(), 0, 100));
    request.true_cfg = static_cast<float>(fields.number("true_cfg", defaults_.true_cfg, 0, 100));
    request.cache = static_cast<float>(fields.number("cache", defaults_.cache, 0, 1));
    request.skip.layers = fields.has("skip_layers")
                              ? parse_layers(fields.text("skip_layers"), "skip_layers")
                              : defaults_.skip.layers;
    // What is said of all lines is for those that leave layers out.
    const float scale = request.skip.layers.empty() ? SkipLayers{}.scale : defaults_.skip.scale;
    request.skip.scale = static_cast<float>(fields.number("skip_layer_scale", scale, 0, 100));
    request.count = static_cast<int>(fields.integer("count", defaults_.count, 1, 10000));
    request.seed = defaults_.seed;
    if (fields.has("seed")) {
      if (!fields.field("seed").is_number_unsigned()) {
        fields.fail("seed", "is not a whole number from 0 to 18446744073709551615");
      }
      request.seed = fields.field("seed").get<uint64_t>();
    }
    // A line that turns guidance off has no use for what others are to avoid.
    const bool turned_off = fields.has(usual_.embedded_guidance ? "true_cfg" : "guidance") &&
                            !takes_two(request, usual_);
    request.negative = turned_off ? std::nullopt : defaults_.negative;
    if (fields.has("negative")) request.negative = fields.text("negative");
    request.original = defaults_.original;
    read_original_size(fields.text("original_size", ""), "original_size", request.original);
    read_crop(fields.text("crop", ""), "crop", request.original);
    line.scheduler = fields.text("scheduler", defaults_.scheduler);
    line.loras = fields.has("loras") ? loras_of(fields) : defaults_.loras;
    fields.finish();
    check_line(line);
  }

  void read(const std::string& prompt, OfflineLine& line) const {
    read(nlohmann::json{{"prompt", prompt}}, line);
  }

 private:
  int steps() const { return defaults_.steps > 0 ? defaults_.steps : usual_.steps; }
  float guidance() const { return defaults_.guidance >= 0 ? defaults_.guidance : usual_.guidance; }

  static void read_names(const ConfigReader& fields, OfflineLine& line) {
    if (fields.has("id")) {
      const nlohmann::json& id = fields.field("id");
      const std::string text = id.is_number_integer() ? id.dump() : fields.text("id");
      check_id(text);
      line.id = text;
    }
    fields.require({"prompt"});
  }

  void check_line(OfflineLine& line) const {
    GenerateRequest& request = line.request;
    check_text_field("prompt", request.prompt);
    check_text_field("negative", request.negative.value_or(""));
    check(request, usual_);
    const Shape latents = model_.latent_shape(request.width, request.height);
    check_prompts(request, model_);
    check_skip_layers(request, model_);
    check_original(request, model_);
    request.scheduler = usual_.scheduler;
    if (!line.scheduler.empty()) {
      try {
        request.scheduler = with_scheduler(usual_.scheduler, line.scheduler);
      } catch (const Error& error) {
        fail_field("scheduler", error.message());
      }
    }
    make_schedule(*request.scheduler, request.steps,
                  model_.denoiser->image_tokens({latents[1], latents[2], latents[3]}));
    for (const LoraChoice& lora : line.loras) {
      if (!path_exists(lora.file)) {
        fail_field("loras", fmt::format("there is no '{}'", printable(lora.file)));
      }
    }
  }

  const OfflineDefaults& defaults_;
  const ModelParts& model_;
  const Sampling& usual_;
};

struct TextLine {
  int number;
  std::string text;
};

std::vector<TextLine> text_lines(const fs::path& file) {
  const auto mapped = Storage::map_file(file);
  constexpr size_t kMostBytes = size_t{256} << 20;
  if (mapped->size() > kMostBytes) {
    throw Error(ErrorCode::kInvalidInput, file.string(), "{} bytes of prompts are too many",
                mapped->size());
  }
  std::string_view rest(reinterpret_cast<const char*>(mapped->bytes().data()), mapped->size());
  if (rest.starts_with("\xEF\xBB\xBF")) rest.remove_prefix(3);
  std::vector<TextLine> lines;
  for (int number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);  // written on Windows
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    lines.push_back({number, std::string(line)});
  }
  mapped->check_intact();
  if (lines.empty()) throw Error(ErrorCode::kInvalidInput, file.string(), "holds no prompt");
  return lines;
}

// As long as files of up to a million lines need it, so that they grow without new names.
std::string numbered(int number) { return fmt::format("{:06}", number); }

}  // namespace

std::string OfflineLine::file(int index) const {
  return request.count == 1 ? id + ".png" : fmt::format("{}-{}.png", id, index + 1);
}

std::vector<OfflineLine> read_offline_lines(const fs::path& file, const OfflineDefaults& defaults,
                                            const ModelParts& model, bool skip_wrong) {
  const LineReader reader(defaults, model);
  const bool is_text = file.extension() == ".txt";
  std::vector<OfflineLine> lines;
  std::map<std::string, int> owners;  // of names of files, by line
  std::string first_where, first_why;
  int wrong = 0;
  for (const TextLine& text : text_lines(file)) {
    OfflineLine line;
    line.number = text.number;
    line.id = numbered(text.number);
    const std::string where = fmt::format("{}: line {}", file.string(), text.number);
    try {
      if (!is_valid_utf8(text.text)) fail_field("", "is not UTF-8");
      if (is_text) {
        reader.read(text.text, line);
      } else {
        reader.read(parse_json(text.text, ""), line);
      }
      for (int i = 0; i < line.request.count; ++i) {
        const auto [owner, is_new] = owners.emplace(line.file(i), text.number);
        if (!is_new) {
          fail_field("id", fmt::format("line {} makes {} already", owner->second,
                                       printable(line.file(i))));
        }
      }
    } catch (const Error& error) {
      line.error = error.what();
      if (line.error.starts_with(": ")) line.error.erase(0, 2);
      line.request.count = 1;
      if (wrong++ == 0) std::tie(first_where, first_why) = std::tie(where, line.error);
    }
    lines.push_back(std::move(line));
  }
  if (wrong > 0 && !skip_wrong) {
    throw Error(ErrorCode::kInvalidInput, first_where, "{}{}", first_why,
                wrong == 1 ? "" : fmt::format(" (and {} more lines are wrong)", wrong - 1));
  }
  return lines;
}

}  // namespace halftone
