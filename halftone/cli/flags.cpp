#include "halftone/cli/flags.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "halftone/base/error.h"

namespace halftone::cli {
namespace {

template <class T>
bool is_whole_number(std::string_view text, T& value) {
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  return failed == std::errc() && end == text.data() + text.size() && !text.empty();
}

// A flag whose numbers are whole has a range of them.
bool takes_whole_numbers(const CLI::Option& option) {
  return option.get_type_name().find("INT in [") != std::string::npos;
}

std::string why_not_decimal(const std::string& text) {
  const std::string_view digits = std::string_view(text).substr(text.starts_with('-') ? 1 : 0);
  const bool decimal =
      !digits.empty() && digits.find_first_not_of("0123456789") == std::string_view::npos;
  if (decimal && (digits.size() == 1 || digits[0] != '0')) return {};
  return fmt::format("'{}' is not a whole number in decimal digits", printable(text));
}

}  // namespace

CLI::Validator finite_number(double least, double most) {
  return {[=](std::string& text) -> std::string {
            char* end = nullptr;
            const double value = std::strtod(text.c_str(), &end);
            const bool number = !text.empty() && *end == '\0' && std::isfinite(value) &&
                                text.find_first_of("xX") == std::string::npos;
            if (number && value >= least && value <= most) return {};
            return fmt::format("'{}' is not a number from {} to {}", printable(text), least, most);
          },
          ""};
}

CLI::Validator seed_number() {
  return {[](std::string& text) -> std::string {
            uint64_t seed = 0;
            if (is_whole_number(text, seed)) return {};
            return fmt::format("'{}' is not a whole number from 0 to 18446744073709551615",
                               printable(text));
          },
          ""};
}

CLI::Validator device_name() {
  return {[](std::string& text) -> std::string {
            uint16_t index = 0;
            const bool numbered = text.starts_with("cuda:") &&
                                  is_whole_number(std::string_view(text).substr(5), index);
            if (numbered || text == "auto" || text == "cpu" || text == "cuda") return {};
            return fmt::format("'{}' is no device: auto, cpu or cuda[:N]", printable(text));
          },
          ""};
}

CLI::Validator precision_name(std::vector<std::string> more) {
  more.insert(more.end(), {"fp32", "bf16", "fp8", "fp8-tensor", "mxfp8", "nvfp4", "nvfp4-4over6",
                           "nvfp4-16x16"});
  return CLI::IsMember(std::move(more));
}

std::pair<int64_t, int64_t> parse_size(const std::string& text, const char* flag) {
  const size_t x = text.find('x');
  uint32_t width = 0, height = 0;
  const std::string_view all = text;
  constexpr uint32_t kMost = 65536;
  if (x == std::string::npos || !is_whole_number(all.substr(0, x), width) ||
      !is_whole_number(all.substr(x + 1), height) || width < 1 || width > kMost || height < 1 ||
      height > kMost) {
    throw Error(ErrorCode::kUsage, flag, "'{}' is not WIDTHxHEIGHT in pixels, up to {}",
                printable(text), kMost);
  }
  return {width, height};
}

void refuse_odd_values(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
    refuse_odd_values(*command);
    for (CLI::Option* option : command->get_options()) {
      if (takes_whole_numbers(*option)) option->check(why_not_decimal);
      const std::string name = option->get_name();
      const bool may_be = name == "--prompt" || name == "--negative" || name == "prompt" ||
                          name == "prompts" || option->get_items_expected_min() == 0;
      if (may_be) continue;
      option->check([](const std::string& value) {
        return value.empty() ? std::string("the value is empty") : std::string();
      });
    }
  }
}

void refuse_given(const CLI::App& command, std::initializer_list<const char*> flags,
                  const char* why) {
  for (const char* flag : flags) {
    if (command.get_option(flag)->count() > 0) throw Error(ErrorCode::kUsage, flag, "{}", why);
  }
}

std::vector<std::string> arguments_of(const CLI::App& app, int argc, const char* const* argv) {
  std::vector<std::string> arguments;
  const CLI::App* command = nullptr;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (command == nullptr) {
      for (const CLI::App* candidate : app.get_subcommands([](const CLI::App*) { return true; })) {
        if (candidate->get_name() == argument) command = candidate;
      }
    }
    const std::string name = argument.substr(0, argument.size() - (argument.empty() ? 0 : 1));
    const bool ends = argument.starts_with("--") && argument.ends_with('=') && argument.size() > 3;
    const CLI::Option* option =
        ends && command != nullptr ? command->get_option_no_throw(name) : nullptr;
    if (option != nullptr && option->get_items_expected_min() > 0) {
      arguments.push_back(name);
      arguments.emplace_back();
    } else {
      arguments.push_back(argument);
    }
  }
  return arguments;
}

}  // namespace halftone::cli
