#include "halftone/server/schema.h"

#include <cmath>
#include <set>

#include "halftone/base/error.h"
#include "halftone/server/api_error.h"

namespace halftone {
namespace {

using nlohmann::json;

Field made(Field::Type type, std::string name, std::string help) {
  Field field;
  field.type = type;
  field.name = std::move(name);
  field.help = std::move(help);
  return field;
}

void check_text(const Field& field, const std::string& name, const json& value) {
  if (!value.is_string()) throw invalid(name, "is not a text");
  const auto& text = value.get_ref<const std::string&>();
  if (static_cast<double>(text.size()) > field.most) {
    throw invalid(name, fmt::format("has {} bytes; {:.0f} are allowed", text.size(), field.most));
  }
  if (text.find('\0') != std::string::npos) throw invalid(name, "holds NUL");
  if (field.choices.empty()) return;
  for (const std::string& choice : field.choices) {
    if (choice == text) return;
  }
  throw invalid(name,
                fmt::format("'{}' is none of {}", printable(text), fmt::join(field.choices, ", ")));
}

void check_number(const Field& field, const std::string& name, const json& value) {
  const bool whole = field.type == Field::Type::kInteger;
  const bool fine = whole ? value.is_number_integer() : value.is_number();
  if (!fine) throw invalid(name, whole ? "is not a whole number" : "is not a number");
  const auto number = value.get<double>();
  if (!(number >= field.least && number <= field.most)) {
    throw invalid(name, fmt::format("{} is not from {:.17g} to {:.17g}", value.dump(), field.least,
                                    field.most));
  }
}

json checked_value(const Field& field, const std::string& name, const json& value) {
  switch (field.type) {
    case Field::Type::kText:
      check_text(field, name, value);
      return value;
    case Field::Type::kInteger:
    case Field::Type::kNumber:
      check_number(field, name, value);
      return value;
    case Field::Type::kBoolean:
      if (!value.is_boolean()) throw invalid(name, "is neither true nor false");
      return value;
    case Field::Type::kTexts:
    case Field::Type::kObjects:
      break;
  }
  if (!value.is_array()) throw invalid(name, "is not a list");
  if (value.size() > field.most_items) {
    throw invalid(name,
                  fmt::format("has {} entries; {} are allowed", value.size(), field.most_items));
  }
  json out = json::array();
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", name, i);
    if (field.type == Field::Type::kObjects) {
      out.push_back(checked(*field.items, value[i], at + "."));
    } else {
      check_text(field, at, value[i]);
      out.push_back(value[i]);
    }
  }
  return out;
}

const char* type_name(Field::Type type) {
  switch (type) {
    case Field::Type::kText:
      return "string";
    case Field::Type::kInteger:
      return "integer";
    case Field::Type::kNumber:
      return "number";
    case Field::Type::kBoolean:
      return "boolean";
    default:
      return "array";
  }
}

}  // namespace

Field Field::text(std::string name, std::string help, uint64_t most_bytes) {
  Field field = made(Type::kText, std::move(name), std::move(help));
  field.most = static_cast<double>(most_bytes);
  return field;
}
Field Field::integer(std::string name, std::string help, int64_t least, int64_t most) {
  Field field = made(Type::kInteger, std::move(name), std::move(help));
  field.least = static_cast<double>(least);
  field.most = static_cast<double>(most);
  return field;
}
Field Field::number(std::string name, std::string help, double least, double most) {
  Field field = made(Type::kNumber, std::move(name), std::move(help));
  field.least = least;
  field.most = most;
  return field;
}
Field Field::boolean(std::string name, std::string help) {
  return made(Type::kBoolean, std::move(name), std::move(help));
}
Field Field::texts(std::string name, std::string help, size_t most_items, uint64_t most_bytes) {
  Field field = made(Type::kTexts, std::move(name), std::move(help));
  field.most_items = most_items;
  field.most = static_cast<double>(most_bytes);
  return field;
}
Field Field::objects(std::string name, std::string help, size_t most_items,
                     const ObjectSchema& items) {
  Field field = made(Type::kObjects, std::move(name), std::move(help));
  field.most_items = most_items;
  field.items = &items;
  return field;
}

Field Field::needed() const {
  Field field = *this;
  field.is_needed = true;
  return field;
}
Field Field::or_else(json value) const {
  Field field = *this;
  field.fallback = std::move(value);
  return field;
}
Field Field::one_of(std::vector<std::string> values) const {
  Field field = *this;
  field.choices = std::move(values);
  return field;
}

json checked(const ObjectSchema& schema, const json& body, const std::string& prefix) {
  if (!body.is_object()) {
    throw invalid(prefix.empty() ? "" : prefix.substr(0, prefix.size() - 1), "is not an object");
  }
  std::set<std::string> known;
  json out = json::object();
  for (const Field& field : schema.fields) {
    known.insert(field.name);
    const auto found = body.find(field.name);
    const bool given = found != body.end() && !found->is_null();
    if (given) {
      out[field.name] = checked_value(field, prefix + field.name, *found);
    } else if (field.is_needed) {
      throw invalid(prefix + field.name, "is needed");
    } else if (!field.fallback.is_null()) {
      out[field.name] = field.fallback;
    }
  }
  for (const auto& [name, value] : body.items()) {
    if (!known.contains(name)) throw invalid(prefix + printable(name), "is not known here");
  }
  return out;
}

nlohmann::ordered_json to_json_schema(const ObjectSchema& schema) {
  nlohmann::ordered_json properties = nlohmann::ordered_json::object();
  auto needed = nlohmann::ordered_json::array();
  for (const Field& field : schema.fields) {
    nlohmann::ordered_json& out = properties[field.name];
    out["type"] = type_name(field.type);
    out["description"] = field.help;
    nlohmann::ordered_json* text = field.type == Field::Type::kText ? &out : nullptr;
    if (field.type == Field::Type::kTexts) {
      out["maxItems"] = field.most_items;
      out["items"] = {{"type", "string"}};
      text = &out["items"];
    }
    if (text != nullptr) {
      (*text)["maxLength"] = static_cast<uint64_t>(field.most);
      if (!field.choices.empty()) (*text)["enum"] = field.choices;
    }
    if (field.type == Field::Type::kInteger) {
      out["minimum"] = static_cast<int64_t>(field.least);
      out["maximum"] = static_cast<uint64_t>(field.most);
    }
    if (field.type == Field::Type::kNumber) {
      out["minimum"] = field.least;
      out["maximum"] = field.most;
    }
    if (field.type == Field::Type::kObjects) {
      out["maxItems"] = field.most_items;
      out["items"] = to_json_schema(*field.items);
    }
    if (!field.fallback.is_null()) out["default"] = field.fallback;
    if (field.is_needed) needed.push_back(field.name);
  }
  nlohmann::ordered_json out = {{"type", "object"}, {"description", schema.help}};
  out["properties"] = std::move(properties);
  if (!needed.empty()) out["required"] = needed;
  out["additionalProperties"] = false;
  return out;
}

}  // namespace halftone
