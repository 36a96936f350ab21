// Any bytes are a path with a query, or nothing; what is decoded holds no NUL, and encoded again it
// is read as the same.
#include <cstdint>
#include <string>

#include "halftone/base/error.h"
#include "halftone/server/http_message.h"

namespace halftone {
namespace {

// All of it as %XX.
std::string encoded(const std::string& text) {
  std::string out;
  for (const char c : text) out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  return out;
}

void check_query(const std::map<std::string, std::string>& query) {
  std::string text;
  for (const auto& [name, value] : query) {
    HT_ASSERT(name.find('\0') == std::string::npos && value.find('\0') == std::string::npos);
    text += (text.empty() ? "" : "&") + encoded(name) + "=" + encoded(value);
  }
  const auto again = parse_query(text);
  HT_ASSERT(again && *again == query);
}

void check(std::string_view text) {
  if (const auto query = parse_query(text)) check_query(*query);
  const auto target = parse_target(text);
  if (!target) return;
  HT_ASSERT(target->path.starts_with('/') && target->path.find('\0') == std::string::npos);
  check_query(target->query);
  const auto again = parse_target("/" + encoded(target->path.substr(1)));
  HT_ASSERT(again && again->path == target->path && again->query.empty());
}

}  // namespace
}  // namespace halftone

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  halftone::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
