// What `serve` and the commands that keep its store have in common.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace halftone::cli {

void add_store_options(CLI::App& command, std::string& data, std::string& store);
void add_keys(CLI::App& app);  // halftone keys, halftone backup

}  // namespace halftone::cli
