// What a server writes down: lines of text for a person, or of JSON for a machine. From any thread.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace halftone {

class Log {
 public:
  enum class Level : uint8_t { kDebug, kInfo, kWarning, kError };
  struct Options {
    std::string file;  // empty: standard error
    bool json = false;
    Level level = Level::kInfo;
  };
  // An Error that names "log-file" where it cannot be written.
  explicit Log(const Options& options);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  // What happened, in a few words, and with what.
  void write(Level level, const std::string& what,
             const nlohmann::ordered_json& with = nlohmann::ordered_json::object());
  void info(const std::string& what, const nlohmann::ordered_json& with = {}) {
    write(Level::kInfo, what, with);
  }
  void warn(const std::string& what, const nlohmann::ordered_json& with = {}) {
    write(Level::kWarning, what, with);
  }

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace halftone
