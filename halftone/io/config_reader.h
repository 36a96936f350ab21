// Reads fields of JSON from outside, checking type and range; what is wrong is an Error that names
// the file and the field, nested ones by the way to them: 'model.type'. A field that is missing or
// null takes its default; one that has no default must be there.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
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

  bool has(const char* name) const { return !field(name).is_null(); }
  // As it is, for what the functions below do not cover; null where it is missing.
  const nlohmann::json& field(const char* name) const {
    static const nlohmann::json kNull;
    const auto found = json_.find(name);
    return found == json_.end() ? kNull : *found;
  }
  const nlohmann::json& json() const { return json_; }

  int64_t integer(const char* name, int64_t fallback, int64_t least, int64_t most) const {
    if (!has(name)) return fallback;
    const auto& value = field(name);
    if (!value.is_number_integer()) fail(name, "is not an integer");
    const auto fits = as_int64(value);
    if (!fits || *fits < least || *fits > most) {
      fail(name, fmt::format("{} is not in {} .. {}", value.dump(), least, most));
    }
    return *fits;
  }

  double positive(const char* name, double fallback) const {
    const double value = number(name, fallback);
    if (!(value > 0)) fail(name, "is not positive");
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

  // A list of positive integers.
  std::vector<int64_t> integers(const char* name, std::vector<int64_t> fallback) const {
    if (!has(name)) return fallback;
    const auto& items = list(name);
    if (items.empty() || items.size() > 64) fail(name, "does not have 1 to 64 entries");
    std::vector<int64_t> values;
    for (const auto& item : items) {
      constexpr int64_t kMost = 1 << 20;
      const auto value = item.is_number_integer() ? as_int64(item) : std::nullopt;
      if (!value || *value < 1 || *value > kMost) {
        fail(name, "holds something that is not a positive integer");
      }
      values.push_back(*value);
    }
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
      fail(name, fmt::format("is {}, and only {} is supported", printable(field(name).dump()),
                             only.dump()));
    }
  }

  [[noreturn]] void fail(const char* name, const std::string& reason) const {
    throw Error(ErrorCode::kInvalidInput, where_, "'{}' {}", way_to(name), reason);
  }

 private:
  // Nothing for what is beyond int64, which would come out negative.
  static std::optional<int64_t> as_int64(const nlohmann::json& integer) {
    constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
    if (integer.is_number_unsigned() && integer.get<uint64_t>() > kMost) return {};
    return integer.get<int64_t>();
  }
  std::string way_to(const char* name) const { return path_.empty() ? name : path_ + "." + name; }

  const nlohmann::json& json_;
  const std::string where_;
  const std::string path_;
};

}  // namespace halftone
