// Values of flags, checked where they are read. The library behind the command line takes NaN for
// a number in any range, "-1" for the largest seed, "010" for 8, and an empty value for none at
// all.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "halftone/base/text.h"  // parse_bytes

namespace halftone::cli {

CLI::Validator finite_number(double least, double most);
CLI::Validator seed_number();  // 0 to 2^64 - 1
CLI::Validator device_name();  // auto, cpu or cuda[:N]

// Precisions that a model can be run in, and `more`.
CLI::Validator precision_name(std::vector<std::string> more = {});

// "640x480"
std::pair<int64_t, int64_t> parse_size(const std::string& text, const char* flag = "--size");

// Every value of every command must be there, except those that may well be empty: prompts. Whole
// numbers are decimal.
void refuse_odd_values(CLI::App& app);
// An Error that names the first of these flags that was given, and says why it is of no use.
void refuse_given(const CLI::App& command, std::initializer_list<const char*> flags,
                  const char* why);
// The arguments after the program's name, with "--flag=" as two: the flag and an empty value. The
// library would take the next argument for the value.
std::vector<std::string> arguments_of(const CLI::App& app, int argc, const char* const* argv);

}  // namespace halftone::cli
