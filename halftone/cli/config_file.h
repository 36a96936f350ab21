// Flags of a command in a TOML file: `steps = 500` is --steps 500.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace halftone::cli {

// Sets options that the command line did not. Keys are names of flags without dashes in front, at
// the top of the file or in a table [train]; lists are for flags that may be given several times.
// What is no flag, or no value of one, is an Error that names the line.
void apply_config(CLI::App& command, const std::string& file);

}  // namespace halftone::cli
