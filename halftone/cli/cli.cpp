#include "halftone/cli/cli.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <new>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"

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

}  // namespace

const char* version() { return HALFTONE_VERSION; }

void write_text_file(const std::filesystem::path& path, const std::string& text) {
  const std::string name = path.string(), temporary = fmt::format("{}.{}.tmp", name, ::getpid());
  std::ofstream out(temporary, std::ios::binary);
  out << text;
  out.close();
  std::error_code failed;
  if (out) std::filesystem::rename(temporary, path, failed);
  if (!out || failed) {
    std::filesystem::remove(temporary, failed);
    throw Error(ErrorCode::kIo, name, "cannot be written");
  }
}

void print_json(const nlohmann::ordered_json& object) {
  fmt::print("{}\n", object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

int run(int argc, const char* const* argv, const Context& context) {
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
  add_compare(app, context);
  add_convert(app, context);
  try {
    app.parse(argc, argv);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      throw Error(ErrorCode::kIo, "standard output", "cannot write to it");
    }
    return kDone;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
      return app.exit(error);  // --help and --version
    }
    std::string message = error.what();
    if (app.get_subcommands().empty() && argc > 1) {
      message =
          fmt::format("there is no {} '{}'", argv[1][0] == '-' ? "option" : "command", argv[1]);
    }
    std::replace(message.begin(), message.end(), '\n', ' ');
    const std::string command = name_of_command(app);
    fmt::print(stderr, "{}: {} (see '{} --help')\n", command, printable(message, 1000), command);
    return kUsage;
  } catch (const Error& error) {
    fmt::print(stderr, "{}: {}\n", name_of_command(app), error.what());
    return exit_code(error.code());
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "{}: out of memory\n", name_of_command(app));
    return kFailed;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: internal error: {}\n", name_of_command(app), printable(error.what()));
    return kFailed;
  }
}

}  // namespace halftone::cli
