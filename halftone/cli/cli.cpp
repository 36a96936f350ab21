#include "halftone/cli/cli.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <new>
#include <nlohmann/json.hpp>
#include <system_error>

#include "halftone/base/error.h"
#include "halftone/base/version.h"
#include "halftone/cli/flags.h"
#include "halftone/engine/engine.h"

namespace halftone::cli {
namespace {

int exit_code(ErrorCode code) {
  if (code == ErrorCode::kUsage) return kUsage;
  if (code == ErrorCode::kFallback) return kFellBack;
  if (code == ErrorCode::kCancelled) return kInterrupted;
  return kFailed;
}

// "halftone", or "halftone quantize" once a command was recognized.
std::string name_of_command(const CLI::App& app) {
  const auto commands = app.get_subcommands();
  return commands.empty() ? "halftone" : "halftone " + commands[0]->get_name();
}

// The one that was asked for, "block" of "halftone bench block".
const CLI::App& innermost_command(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands()[0];
  return *command;
}

// Whether what is printed is what was asked for: there is no file, or JSON was wanted.
bool result_is_printed(const CLI::App& app) {
  const CLI::App& command = innermost_command(app);
  const CLI::Option* json = command.get_option_no_throw("--json");
  return command.get_option_no_throw("--output") == nullptr ||
         (json != nullptr && json->count() > 0);
}

// What could not be printed is not missed: readers may go when they have seen enough, and a report
// on a file may have none from the start.
bool nobody_needs(int error, bool is_result) {
  return error == EPIPE || (error == EBADF && !is_result);
}

// What lies below names a field where the command line has a flag: max_memory is --max-memory.
std::string with_flag(const Error& error, const CLI::App& app) {
  std::string flag = "--" + error.where();
  std::replace(flag.begin(), flag.end(), '_', '-');
  const std::string text = error.what();
  const bool known = innermost_command(app).get_option_no_throw(flag) != nullptr;
  return known ? flag + text.substr(error.where().size()) : text;
}

// What was printed may still be in a buffer, and the disk behind it full.
int check_stdout(bool is_result) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout) return kDone;
  if (nobody_needs(errno, is_result)) return kDone;
  // What failed before is not known any more.
  print_note("halftone: standard output: cannot write to it{}{}\n", errno != 0 ? ": " : "",
             errno != 0 ? std::strerror(errno) : "");
  return kFailed;
}

}  // namespace

const char* version() { return halftone::version(); }

std::string json_text(const nlohmann::ordered_json& object, int indent) {
  return object.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}
void print_json(const nlohmann::ordered_json& object) { fmt::print("{}\n", json_text(object)); }

int run(int argc, const char* const* argv, const Context& process) {
  Engine engine;
  Context context = process;
  context.engine = &engine;
  CLI::App app("Generates with, quantizes and trains diffusion models in FP8, MXFP8 and NVFP4.",
               "halftone");
  app.set_version_flag("--version", std::string("halftone ") + version());
  app.require_subcommand(1);
  app.footer(
      "'halftone COMMAND --help' explains a command.\n"
      "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a fallback with --strict,\n"
      "130 interrupted.");
  app.get_formatter()->column_width(34);
  add_bench(app, context);
  add_generate(app, context);
  add_info(app, context);
  add_inspect(app, context);
  add_quantize(app, context);
  add_sheet(app, context);
  add_train(app, context);
  add_compare(app, context);
  add_convert(app, context);
  add_serve(app, context);
  refuse_odd_values(app);
  try {
    std::vector<std::string> arguments = arguments_of(app, argc, argv);
    std::reverse(arguments.begin(), arguments.end());  // the parser takes them from the back
    app.parse(std::move(arguments));
    return check_stdout(result_is_printed(app));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
      app.exit(error);  // --help and --version
      std::cout.flush();
      return check_stdout(true);
    }
    std::string message = error.what();
    if (app.get_subcommands().empty() && argc > 1) {
      message =
          fmt::format("there is no {} '{}'", argv[1][0] == '-' ? "option" : "command", argv[1]);
    }
    std::replace(message.begin(), message.end(), '\n', ' ');
    const std::string command = name_of_command(app);
    print_note("{}: {} (see '{} --help')\n", command, printable(message, 1000), command);
    return kUsage;
  } catch (const Error& error) {
    // Commands that leave something say so themselves.
    const bool plain = error.code() == ErrorCode::kCancelled && error.message() == "interrupted";
    print_note("{}: {}{}\n", name_of_command(app), with_flag(error, app),
               plain ? "; nothing was written" : "");
    return exit_code(error.code());
  } catch (const std::bad_alloc&) {
    print_note("{}: out of memory\n", name_of_command(app));
    return kFailed;
  } catch (const std::filesystem::filesystem_error& error) {
    print_note("{}: {}: {}\n", name_of_command(app), printable(error.path1().string()),
               error.code().message());
    return kFailed;
  } catch (const std::system_error& error) {  // how fmt::print says that it could not
    if (nobody_needs(error.code().value(), result_is_printed(app))) return kDone;
    print_note("{}: standard output: cannot write to it: {}\n", name_of_command(app),
               error.code().message());
    return kFailed;
  } catch (const std::exception& error) {
    print_note("{}: internal error: {}\n", name_of_command(app), printable(error.what()));
    return kFailed;
  }
}

}  // namespace halftone::cli
