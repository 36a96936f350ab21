// What the body of a request may hold, said once: bodies are checked against it, defaults are
// filled in from it, and the OpenAPI document is written from it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace halftone {

struct ObjectSchema;

struct Field {
  enum class Type : uint8_t { kText, kInteger, kNumber, kBoolean, kTexts, kObjects };

  static Field text(std::string name, std::string help, uint64_t most_bytes = 200);
  static Field integer(std::string name, std::string help, int64_t least, int64_t most);
  static Field number(std::string name, std::string help, double least, double most);
  static Field boolean(std::string name, std::string help);
  static Field texts(std::string name, std::string help, size_t most_items, uint64_t most_bytes);
  static Field objects(std::string name, std::string help, size_t most_items,
                       const ObjectSchema& items);

  Field needed() const;
  Field or_else(nlohmann::json fallback) const;  // what it is where it is not given
  Field one_of(std::vector<std::string> choices) const;

  std::string name, help;
  Type type = Type::kText;
  bool is_needed = false;
  double least = 0, most = 0;  // of numbers; of texts, `most` bytes
  size_t most_items = 0;
  std::vector<std::string> choices;
  const ObjectSchema* items = nullptr;
  nlohmann::json fallback;  // null: none
};

struct ObjectSchema {
  std::string name, help;
  std::vector<Field> fields;
};

// The body with defaults filled in. An ApiError that names the field: one that is unknown, missing,
// of another type or out of range.
nlohmann::json checked(const ObjectSchema& schema, const nlohmann::json& body,
                       const std::string& prefix = "");
// As JSON Schema.
nlohmann::ordered_json to_json_schema(const ObjectSchema& schema);

}  // namespace halftone
