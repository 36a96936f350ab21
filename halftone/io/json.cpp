#include "halftone/io/json.h"

#include <unordered_set>
#include <vector>

#include "halftone/base/error.h"
#include "halftone/tensor/storage.h"

namespace halftone {
namespace {
constexpr int kMaxDepth = 64;
// A document takes up to 25 times its text in memory.
constexpr size_t kMaxBytes = 16 << 20;
}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& where) {
  if (text.size() > kMaxBytes) {
    throw Error(ErrorCode::kInvalidInput, where, "{} bytes of JSON are too many", text.size());
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

nlohmann::json read_json_file(const std::filesystem::path& path) {
  const auto storage = Storage::map_file(path);
  const auto bytes = storage->bytes();
  return parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

}  // namespace halftone
