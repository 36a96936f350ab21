// Whether JSON is as a schema says: as much of JSON Schema as the server's document uses.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace halftone::test {

// What is wrong with `value`, one line each; `document` holds what "$ref" names. A keyword that is
// not known here is a problem, too: what is not checked must not look as if it were.
std::vector<std::string> schema_problems(const nlohmann::json& document,
                                         const nlohmann::json& schema, const nlohmann::json& value,
                                         const std::string& at = "");

}  // namespace halftone::test
