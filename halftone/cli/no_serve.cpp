// For builds without the server's libraries.
#include "halftone/base/error.h"
#include "halftone/cli/cli.h"

namespace halftone::cli {

void add_serve(CLI::App& app, const Context&) {
  CLI::App* command = app.add_subcommand("serve", "A server and its page: not in this build");
  command->allow_extras();
  command->callback([] {
    throw Error(ErrorCode::kUnsupported, "serve",
                "this build has no server: it needs Boost 1.81, SQLite, spdlog and libsodium");
  });
}

}  // namespace halftone::cli
