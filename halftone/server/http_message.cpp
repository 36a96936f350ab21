#include "halftone/server/http_message.h"

namespace halftone {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::optional<std::string> decode_url(std::string_view text, bool plus_is_space) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '+' && plus_is_space) c = ' ';
    if (text[i] == '%') {
      if (i + 2 >= text.size()) return std::nullopt;
      const int high = hex_digit(text[i + 1]), low = hex_digit(text[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (c == '\0') return std::nullopt;
    out += c;
  }
  return out;
}

std::optional<std::map<std::string, std::string>> parse_query(std::string_view text) {
  std::map<std::string, std::string> query;
  while (!text.empty()) {
    const size_t end = text.find('&');
    const std::string_view pair = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (pair.empty()) continue;
    const size_t equals = pair.find('=');
    const auto name = decode_url(pair.substr(0, equals), true);
    const auto value =
        decode_url(equals == std::string_view::npos ? "" : pair.substr(equals + 1), true);
    if (!name || !value) return std::nullopt;
    query.insert_or_assign(*name, *value);
  }
  return query;
}

std::optional<HttpTarget> parse_target(std::string_view target) {
  if (!target.starts_with('/')) return std::nullopt;
  target = target.substr(0, target.find('#'));
  const size_t question = target.find('?');
  const auto path = decode_url(target.substr(0, question), false);
  const auto query =
      parse_query(question == std::string_view::npos ? "" : target.substr(question + 1));
  if (!path || !query) return std::nullopt;
  return HttpTarget{*path, *query};
}

}  // namespace halftone
