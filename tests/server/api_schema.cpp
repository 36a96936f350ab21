#include "tests/server/api_schema.h"

#include <algorithm>
#include <set>

namespace halftone::test {
namespace {

using nlohmann::json;

bool is_of(const json& value, const std::string& type) {
  if (type == "null") return value.is_null();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "array") return value.is_array();
  return type == "object" && value.is_object();
}

class Checker {
 public:
  explicit Checker(const json& document) : document_(document) {}

  void check(const json& schema, const json& value, const std::string& at) {
    static const std::set<std::string> kKnown = {
        "$ref",        "type",    "enum",     "required",  "properties", "items",
        "anyOf",       "minimum", "maximum",  "maxLength", "maxItems",   "additionalProperties",
        "description", "default", "minLength"};
    for (const auto& [keyword, unused] : schema.items()) {
      if (!kKnown.contains(keyword)) wrong(at, "the schema's keyword " + keyword + " is not known");
    }
    if (schema.contains("$ref")) {
      const std::string name = schema["$ref"];
      const json::json_pointer pointer(name.substr(1));
      if (!document_.contains(pointer)) return wrong(at, name + " is not there");
      check(document_[pointer], value, at);
    }
    if (schema.contains("type") && !has_type(schema["type"], value)) {
      return wrong(at, "is no " + schema["type"].dump() + ": " + value.dump().substr(0, 80));
    }
    if (schema.contains("enum") && std::ranges::count(schema["enum"], value) == 0) {
      wrong(at, value.dump() + " is none of " + schema["enum"].dump());
    }
    if (schema.contains("anyOf")) check_any(schema["anyOf"], value, at);
    if (value.is_object()) check_object(schema, value, at);
    if (value.is_array() && schema.contains("items")) {
      for (size_t i = 0; i < value.size(); ++i) {
        check(schema["items"], value[i], at + "[" + std::to_string(i) + "]");
      }
    }
    if (value.is_number() && value < schema.value("minimum", value)) wrong(at, "is too small");
    if (value.is_number() && value > schema.value("maximum", value)) wrong(at, "is too large");
    if (value.is_array() && value.size() > schema.value("maxItems", value.size())) {
      wrong(at, "is too long");
    }
  }

  std::vector<std::string> problems;

 private:
  void wrong(const std::string& at, const std::string& what) {
    problems.push_back(at + ": " + what);
  }

  static bool has_type(const json& types, const json& value) {
    if (types.is_string()) return is_of(value, types);
    return std::ranges::any_of(types, [&](const json& type) { return is_of(value, type); });
  }

  void check_any(const json& schemas, const json& value, const std::string& at) {
    for (const json& schema : schemas) {
      Checker one(document_);
      one.check(schema, value, at);
      if (one.problems.empty()) return;
    }
    wrong(at, "is none of anyOf: " + value.dump().substr(0, 80));
  }

  void check_object(const json& schema, const json& value, const std::string& at) {
    for (const json& name : schema.value("required", json::array())) {
      if (!value.contains(name)) wrong(at, "lacks " + name.get<std::string>());
    }
    const json properties = schema.value("properties", json::object());
    for (const auto& [name, inner] : value.items()) {
      if (properties.contains(name)) {
        check(properties[name], inner, at + "." + name);
      } else if (schema.value("additionalProperties", json(true)) == json(false)) {
        wrong(at, "has " + name + " as well");
      }
    }
  }

  const json& document_;
};

}  // namespace

std::vector<std::string> schema_problems(const json& document, const json& schema,
                                         const json& value, const std::string& at) {
  Checker checker(document);
  checker.check(schema, value, at);
  return checker.problems;
}

}  // namespace halftone::test
