#include "halftone/io/json.h"

#include <unordered_set>
#include <vector>

#include "halftone/base/error.h"
#include "halftone/tensor/storage.h"

namespace halftone {
namespace {
constexpr int kMaxDepth = 64;
}  // namespace

std::optional<size_t> find_foreign_byte(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) return 0;
  const size_t nul = text.find('\0');
  return nul == std::string_view::npos ? std::nullopt : std::optional(nul);
}

nlohmann::json parse_json(std::string_view text, const std::string& where) {
  if (text.size() > kMaxJsonBytes) {
    throw Error(ErrorCode::kInvalidInput, where, "{} bytes of JSON are too many", text.size());
  }
  if (text.empty()) throw Error(ErrorCode::kInvalidInput, where, "is empty instead of JSON");
  if (const auto at = find_foreign_byte(text)) {
    throw Error(ErrorCode::kInvalidInput, where, "bad JSON at byte {}", *at + 1);
  }
  using nlohmann::json;
  std::vector<std::unordered_set<std::string>> keys;  // of each object that is open
  const json::parser_callback_t check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) {
      throw Error(ErrorCode::kInvalidInput, where, "JSON nested more than {} deep", kMaxDepth);
    }
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) {
        throw Error(ErrorCode::kInvalidInput, where, "duplicate key '{}'", printable(key));
      }
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::parse_error& error) {
    throw Error(ErrorCode::kInvalidInput, where, "bad JSON at byte {}", error.byte);
  } catch (const json::out_of_range&) {  // how the parser reports a number beyond double
    throw Error(ErrorCode::kInvalidInput, where, "bad JSON: a number is out of range");
  }
}

std::string json_text(const nlohmann::json& json, const std::string& where) {
  std::string text = json.dump();
  if (text.size() > kMaxJsonBytes) {
    throw Error(ErrorCode::kUnsupported, where,
                "would be {} bytes of JSON, and not more than {} can be read again", text.size(),
                kMaxJsonBytes);
  }
  return text;
}

nlohmann::json read_json_file(const std::filesystem::path& path) {
  const auto storage = Storage::map_file(path);
  const auto bytes = storage->bytes();
  return parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

nlohmann::json read_python_json_file(const std::filesystem::path& path) {
  const auto storage = Storage::map_file(path);
  const auto bytes = storage->bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  constexpr std::string_view kInfinity = "Infinity";
  std::string finite;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!quoted && text.substr(i).starts_with(kInfinity)) {
      finite += "1e308";
      i += kInfinity.size() - 1;
      continue;
    }
    finite += text[i];
    if (text[i] == '"') quoted = !quoted;
    if (quoted && text[i] == '\\' && i + 1 < text.size()) finite += text[++i];
  }
  return parse_json(finite, path.string());
}

}  // namespace halftone
