// The command line: `halftone COMMAND ...`. Each command lives in a file of its own and adds
// itself to the application; main only calls run().
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace halftone::cli {

// What the process looks like from inside a command.
struct Context {
  std::function<void()> watch_interrupts;  // from now on Ctrl-C is asked for, not fatal
  std::function<bool()> interrupted;       // whether it was pressed
  bool terminal = false;                   // whether stderr is a person's terminal
};

// Exit codes.
inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;
inline constexpr int kFellBack = 3;  // with --strict
inline constexpr int kInterrupted = 130;

void add_bench(CLI::App& app, const Context& context);
void add_convert(CLI::App& app, const Context& context);
void add_generate(CLI::App& app, const Context& context);
void add_info(CLI::App& app, const Context& context);
void add_inspect(CLI::App& app, const Context& context);
void add_quantize(CLI::App& app, const Context& context);
void add_sheet(CLI::App& app, const Context& context);
void add_compare(CLI::App& app, const Context& context);

// Parses and runs; every Error becomes one line on stderr and an exit code.
int run(int argc, const char* const* argv, const Context& context);

const char* version();

// One object on one line of stdout. Bytes that are not UTF-8 (in a path, say) are replaced.
void print_json(const nlohmann::ordered_json& object);
// As a whole or not at all; an Error that names it where that fails.
void write_text_file(const std::filesystem::path& path, const std::string& text);

}  // namespace halftone::cli
