// JSON from outside, read strictly: no duplicate keys, nothing that is not JSON before or after,
// bounded size and depth, errors on one line.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace halftone {

// A document takes up to 25 times its text in memory.
inline constexpr size_t kMaxJsonBytes = 16 << 20;

// `where` names the source in errors.
nlohmann::json parse_json(std::string_view text, const std::string& where);

// The text of a document that parse_json can read again; an Error where it would be too long.
std::string json_text(const nlohmann::json& json, const std::string& where);

nlohmann::json read_json_file(const std::filesystem::path& path);
// The same of what Python has written: its Infinity and -Infinity, which JSON does not have, are
// read as 1e308 and -1e308.
nlohmann::json read_python_json_file(const std::filesystem::path& path);

// Where a text holds what the parser passes over although it is no JSON: a byte-order mark at the
// start, or a NUL, which it takes for the end of the text.
std::optional<size_t> find_foreign_byte(std::string_view text);

}  // namespace halftone
