// JSON from outside, read strictly: no duplicate keys, bounded size and depth, errors on one line.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace halftone {

// `where` names the source in errors.
nlohmann::json parse_json(std::string_view text, const std::string& where);

nlohmann::json read_json_file(const std::filesystem::path& path);

}  // namespace halftone
