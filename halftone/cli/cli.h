// The command line: `halftone COMMAND ...`. Each command lives in a file of its own and adds
// itself to the application; main only calls run().
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace halftone {

class Engine;

namespace cli {

// What the process looks like from inside a command.
struct Context {
  std::function<void(bool on)> watch_interrupts;  // while on, Ctrl-C asks to stop, and is not fatal
  std::function<bool()> interrupted;              // whether it was pressed
  bool terminal = false;                          // whether stderr is a person's terminal
  Engine* engine = nullptr;                       // set by `run`
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
void add_serve(CLI::App& app, const Context& context);  // and what keeps its keys and its store
void add_sheet(CLI::App& app, const Context& context);
void add_compare(CLI::App& app, const Context& context);
void add_train(CLI::App& app, const Context& context);

// Parses and runs; every Error becomes one line on stderr and an exit code.
int run(int argc, const char* const* argv, const Context& context);

const char* version();

// A line for a person, on stderr. Where that is closed or full there is no one to tell.
template <class... Args>
void print_note(fmt::format_string<Args...> text, Args&&... args) {
  const std::string line = fmt::format(text, std::forward<Args>(args)...);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

// Bytes that are not UTF-8 (in a path, say) are replaced.
std::string json_text(const nlohmann::ordered_json& object, int indent = -1);
// One object on one line of stdout.
void print_json(const nlohmann::ordered_json& object);

}  // namespace cli
}  // namespace halftone
