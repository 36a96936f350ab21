// Reads fields of JSON from outside, checking type and range; what is wrong is an Error that names
// the file and the field, nested ones by the way to them: 'model.type'. A field that is missing or
// null takes its default; one that has no default must be there. Where no field may be passed over
// in silence, finish() refuses those that nobody asked for.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "halftone/base/error.h"

namespace halftone {

class ConfigReader {
 public:
  // The reader looks into `json`, which must outlive it. `path` is the way to it, for errors.
  ConfigReader(const nlohmann::json& json, std::string where, std::string path = {})
      : json_(json), where_(std::move(where)), path_(std::move(path)) {
    if (json.is_object()) return;
    if (path_.empty()) throw Error(ErrorCode::kInvalidInput, where_, "is not a JSON object");
    throw Error(ErrorCode::kInvalidInput, where_, "'{}' is not an object", path_);
  }

  bool has(const std::string& name) const { return !field(name).is_null(); }
  // As it is, for what the functions below do not cover; null where it is missing.
  const nlohmann::json& field(const std::string& name) const {
    static const nlohmann::json kNull;
    asked_.insert(name);
    const auto found = json_.find(name);
    return found == json_.end() ? kNull : *found;
  }
  const nlohmann::json& json() const { return json_; }

  void require(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (!has(name)) fail(name, "is missing");
    }
  }

  int64_t integer(const char* name, int64_t fallback, int64_t least, int64_t most) const {
    return has(name) ? integer_in(name, field(name), least, most) : fallback;
  }

  // Bounds are such that the value, and what is computed with it, is an ordinary float.
  double number(const char* name, double fallback, double least, double most) const {
    if (!has(name)) return fallback;
    const double value = number(name);
    if (!(value >= least && value <= most)) {
      fail(name, fmt::format("{} is not in {} .. {}", shown(field(name)), least, most));
    }
    return value;
  }
  double number(const char* name, double fallback) const {
    return has(name) ? number(name) : fallback;
  }
  double number(const char* name) const {
    if (!field(name).is_number()) fail(name, "is not a number");
    return field(name).get<double>();
  }
  // A number that a float can hold.
  float real(const char* name) const {
    const double value = number(name);
    if (std::abs(value) > std::numeric_limits<float>::max()) fail(name, "is beyond float");
    return static_cast<float>(value);
  }

  bool boolean(const char* name, bool fallback) const {
    return has(name) ? boolean(name) : fallback;
  }
  bool boolean(const char* name) const {
    if (!field(name).is_boolean()) fail(name, "is not true or false");
    return field(name).get<bool>();
  }

  std::string text(const char* name, const std::string& fallback) const {
    return has(name) ? text(name) : fallback;
  }
  std::string text(const char* name) const {
    if (!field(name).is_string()) fail(name, "is not a string");
    return field(name).get<std::string>();
  }

  // A short list of positive integers.
  std::vector<int64_t> integers(const char* name, std::vector<int64_t> fallback,
                                size_t most_items = 8, int64_t most = 1 << 20) const {
    if (!has(name)) return fallback;
    const auto& items = list(name);
    if (items.empty() || items.size() > most_items) {
      fail(name, fmt::format("is not a list of 1 to {} integers", most_items));
    }
    std::vector<int64_t> values;
    for (const auto& item : items) values.push_back(integer_in(name, item, 1, most));
    return values;
  }
  std::array<int64_t, 3> three(const char* name, std::array<int64_t, 3> fallback) const {
    const auto values = integers(name, {fallback.begin(), fallback.end()});
    if (values.size() != 3) fail(name, "is not a list of three");
    return {values[0], values[1], values[2]};
  }
  // A list that this implementation takes with exactly one entry.
  int64_t single(const char* name, int64_t fallback) const {
    const auto values = integers(name, {fallback});
    if (values.size() != 1) fail(name, "is not a list of one");
    return values[0];
  }

  const nlohmann::json& list(const char* name) const {
    if (!field(name).is_array()) fail(name, "is not a list");
    return field(name);
  }
  ConfigReader object(const char* name) const { return {field(name), where_, way_to(name)}; }
  // A list of objects.
  std::vector<ConfigReader> objects(const char* name) const {
    std::vector<ConfigReader> items;
    for (const auto& item : list(name)) {
      items.emplace_back(item, where_, fmt::format("{}[{}]", way_to(name), items.size()));
    }
    return items;
  }

  // A field that must have one value, because others are not supported.
  void must_be(const char* name, const nlohmann::json& only) const {
    if (has(name) && field(name) != only) {
      fail(name, fmt::format("is {}, and only {} is supported", shown(field(name)), shown(only)));
    }
  }
  void must_be_one_of(const char* name, std::initializer_list<nlohmann::json> known) const {
    if (!has(name)) return;
    for (const auto& value : known) {
      if (field(name) == value) return;
    }
    fail(name, fmt::format("is {}, which is not supported", shown(field(name))));
  }
  // A list in which every entry must be this one.
  void must_hold_only(const char* name, const nlohmann::json& only) const {
    if (!has(name)) return;
    for (const auto& item : list(name)) {
      if (item != only) {
        fail(name, fmt::format("holds {}, and only {} is supported", shown(item), shown(only)));
      }
    }
  }
  // Fields that ask for what is not supported as soon as they hold anything.
  void must_be_empty(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (!has(name)) continue;
      const auto& value = field(name);
      const bool empty = value == false || (value.is_structured() && value.empty());
      if (!empty) fail(name, fmt::format("is {}, which is not supported", shown(value)));
    }
  }

  // Fields that change no result.
  void ignore(std::initializer_list<const char*> names) const {
    asked_.insert(names.begin(), names.end());
  }
  // To be called when all fields were asked for. Names with an underscore in front are notes that
  // diffusers and transformers write for themselves; so is a null.
  void finish() const {
    for (const auto& [name, value] : json_.items()) {
      if (asked_.contains(name) || name.starts_with('_') || value.is_null()) continue;
      fail(name, fmt::format("is not known, and may change results: {}", shown(value)));
    }
  }

  [[noreturn]] void fail(std::string_view name, const std::string& reason) const {
    throw Error(ErrorCode::kInvalidInput, where_, "'{}' {}", way_to(printable(name)), reason);
  }

 private:
  // A value as errors show it: in ASCII, and cut where it is long.
  static std::string shown(const nlohmann::json& value) {
    constexpr size_t kMost = 60;
    const std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
    return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
  }

  int64_t integer_in(const char* name, const nlohmann::json& json, int64_t least,
                     int64_t most) const {
    if (!json.is_number_integer()) fail(name, "is not an integer");
    // Beyond int64 a number is an unsigned one, which would come out negative.
    const bool fits = !json.is_number_unsigned() || json.get<uint64_t>() <= uint64_t{INT64_MAX};
    if (!fits || json.get<int64_t>() < least || json.get<int64_t>() > most) {
      fail(name, fmt::format("{} is not in {} .. {}", shown(json), least, most));
    }
    return json.get<int64_t>();
  }
  std::string way_to(const std::string& name) const {
    return path_.empty() ? name : path_ + "." + name;
  }

  const nlohmann::json& json_;
  const std::string where_;
  const std::string path_;
  mutable std::set<std::string, std::less<>> asked_;
};

}  // namespace halftone
