#include "halftone/cli/config_file.h"

#define TOML_EXCEPTIONS 1
#define TOML_ENABLE_FORMATTERS 0
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>

#include "halftone/base/error.h"
#include "halftone/tensor/storage.h"

namespace halftone::cli {
namespace {

class ConfigFile {
 public:
  ConfigFile(CLI::App& command, const std::string& file) : command_(command), file_(file) {}

  void apply() const {
    const auto mapped = Storage::map_file(file_);
    constexpr size_t kMostBytes = 1 << 20;
    if (mapped->size() > kMostBytes) {
      throw Error(ErrorCode::kInvalidInput, file_, "{} bytes are no list of flags", mapped->size());
    }
    toml::table root;
    try {
      root = toml::parse(
          std::string_view(reinterpret_cast<const char*>(mapped->bytes().data()), mapped->size()));
    } catch (const toml::parse_error& error) {
      throw Error(ErrorCode::kUsage, file_, "line {}: {}", error.source().begin.line,
                  printable(error.description()));
    }
    for (const auto& [key, value] : root) {
      if (value.is_table() && key.str() == command_.get_name()) {
        for (const auto& [inner, own] : *value.as_table()) set(std::string(inner.str()), own);
      } else {
        set(std::string(key.str()), value);
      }
    }
  }

 private:
  [[noreturn]] void fail(const toml::node& at, const std::string& reason) const {
    throw Error(ErrorCode::kUsage, file_, "line {}: {}", at.source().begin.line, reason);
  }

  // As it would be typed.
  std::string typed(const toml::node& value) const {
    if (const auto* text = value.as_string()) return **text;
    if (const auto* whole = value.as_integer()) return std::to_string(**whole);
    if (const auto* number = value.as_floating_point()) return fmt::format("{}", **number);
    if (const auto* flag = value.as_boolean()) return **flag ? "true" : "false";
    fail(value, "is neither a text, a number, true nor false");
  }

  // A number would be taken for the name of a file. What is wrong besides, the flag itself refuses.
  void check_kind(const CLI::Option& option, const std::string& key,
                  const toml::node& value) const {
    constexpr std::array kTexts = {"DIR", "DIR|FILE", "FILE", "OUT.safetensors",
                                   "T",   "TEXT",     "WxH",  "WORDS"};
    const std::string type = option.get_type_name();
    const bool takes_text =
        std::ranges::any_of(kTexts, [&](const char* text) { return type == text; });
    if (takes_text && !value.is_string()) fail(value, fmt::format("'{}' takes a text", key));
  }

  void set(std::string key, const toml::node& value) const {
    std::replace(key.begin(), key.end(), '_', '-');
    CLI::Option* option = command_.get_option_no_throw("--" + key);
    if (option == nullptr || key == "help" || key == "config") {
      fail(value, fmt::format("'{}' is no flag of '{}'", printable(key), command_.get_name()));
    }
    if (option->count() > 0) return;  // the command line's
    const bool is_flag = option->get_expected_max() == 0;
    const bool takes_list = option->get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
    try {
      if (const auto* list = value.as_array()) {
        if (!takes_list) fail(value, fmt::format("'{}' takes one value, and no list", key));
        for (const toml::node& item : *list) {
          check_kind(*option, key, item);
          option->add_result(typed(item));
        }
        if (list->empty()) return;
      } else {
        if (is_flag && !value.is_boolean()) fail(value, fmt::format("'{}' is true or false", key));
        if (!is_flag && value.is_boolean()) fail(value, fmt::format("'{}' takes a value", key));
        if (is_flag && !**value.as_boolean()) return;  // as it is
        check_kind(*option, key, value);
        option->add_result(typed(value));
      }
      option->run_callback();
    } catch (const CLI::Error& error) {
      fail(value, printable(error.what()));
    }
  }

  CLI::App& command_;
  const std::string& file_;
};

}  // namespace

void apply_config(CLI::App& command, const std::string& file) { ConfigFile(command, file).apply(); }

}  // namespace halftone::cli
