// Reads fields of a config.json, checking type and range; what is wrong is an Error that names the
// file and the field. A field that is missing or null takes its default.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "halftone/base/error.h"

namespace halftone {

class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& json, const std::string& where) : json_(json), where_(where) {
    if (!json.is_object()) throw Error(ErrorCode::kInvalidInput, where, "is not a JSON object");
  }

  bool has(const char* name) const { return json_.contains(name) && !json_[name].is_null(); }

  int64_t integer(const char* name, int64_t fallback, int64_t least, int64_t most) const {
    if (!has(name)) return fallback;
    if (!json_[name].is_number_integer()) fail(name, "is not an integer");
    const auto value = json_[name].get<int64_t>();
    if (value < least || value > most) {
      fail(name, fmt::format("{} is not in {} .. {}", value, least, most));
    }
    return value;
  }

  double positive(const char* name, double fallback) const {
    const double value = number(name, fallback);
    if (!(value > 0)) fail(name, "is not positive");
    return value;
  }
  double number(const char* name, double fallback) const {
    if (!has(name)) return fallback;
    if (!json_[name].is_number()) fail(name, "is not a number");
    return json_[name].get<double>();
  }

  bool boolean(const char* name, bool fallback) const {
    if (!has(name)) return fallback;
    if (!json_[name].is_boolean()) fail(name, "is not true or false");
    return json_[name].get<bool>();
  }

  std::string text(const char* name, const std::string& fallback) const {
    if (!has(name)) return fallback;
    if (!json_[name].is_string()) fail(name, "is not a string");
    return json_[name].get<std::string>();
  }

  // A list of positive integers.
  std::vector<int64_t> integers(const char* name, std::vector<int64_t> fallback) const {
    if (!has(name)) return fallback;
    const auto& list = json_[name];
    if (!list.is_array() || list.empty() || list.size() > 64) fail(name, "is not a list");
    std::vector<int64_t> values;
    for (const auto& item : list) {
      constexpr int64_t kMost = 1 << 20;
      if (!item.is_number_integer() || item.get<int64_t>() < 1 || item.get<int64_t>() > kMost) {
        fail(name, "holds something that is not a positive integer");
      }
      values.push_back(item.get<int64_t>());
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

  // A field that must have one value, because others are not supported.
  void must_be(const char* name, const nlohmann::json& only) const {
    if (has(name) && json_[name] != only) {
      fail(name, fmt::format("is {}, and only {} is supported", json_[name].dump(), only.dump()));
    }
  }

  [[noreturn]] void fail(const char* name, const std::string& reason) const {
    throw Error(ErrorCode::kInvalidInput, where_, "'{}' {}", name, reason);
  }

 private:
  const nlohmann::json& json_;
  const std::string& where_;
};

}  // namespace halftone
