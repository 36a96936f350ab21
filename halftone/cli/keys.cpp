// halftone keys: who may use a server. halftone backup: a copy of what it keeps.
#include <fmt/format.h>

#include <ctime>
#include <memory>

#include "halftone/base/error.h"
#include "halftone/cli/cli.h"
#include "halftone/cli/serve_flags.h"
#include "halftone/io/output.h"
#include "halftone/server/api_error.h"
#include "halftone/server/auth.h"
#include "halftone/server/names.h"
#include "halftone/server/server.h"

namespace halftone::cli {
namespace {

struct StoreFlags {
  std::string data, store, name, output;
};

std::unique_ptr<Store> store_of(const StoreFlags& flags) {
  ServerOptions options;
  options.data = flags.data.empty() ? usual_data_folder() : std::filesystem::path(flags.data);
  options.store = flags.store;
  return open_store(options, StoreUse::kBeside);
}

void add_key(const StoreFlags& flags) {
  try {
    check_name("name", flags.name);
  } catch (const ApiError& error) {
    throw Error(ErrorCode::kUsage, "name", "{}", error.message);
  }
  const std::string key = make_key();
  store_of(flags)->add_key({flags.name, hash_of_key(key), static_cast<double>(std::time(nullptr))});
  fmt::print("{}\n", key);
  print_note(
      "This is the only time that it is shown. Send it as 'Authorization: Bearer KEY', or "
      "give it to the page.\n");
}

void list_keys(const StoreFlags& flags) {
  for (const ApiKey& key : store_of(flags)->keys()) {
    const auto when = static_cast<std::time_t>(key.created);
    std::tm day{};
    ::gmtime_r(&when, &day);
    fmt::print("{:04}-{:02}-{:02}  {}\n", day.tm_year + 1900, day.tm_mon + 1, day.tm_mday,
               printable(key.name));
  }
}

void remove_key(const StoreFlags& flags) {
  if (store_of(flags)->remove_key(flags.name)) return;
  throw Error(ErrorCode::kNotFound, "name", "there is no key called '{}'", printable(flags.name));
}

}  // namespace

void add_store_options(CLI::App& command, std::string& data, std::string& store) {
  command
      .add_option("--data", data,
                  "Where jobs, adapters, models and pictures are kept (default: "
                  "~/.local/share/halftone)")
      ->type_name("DIR");
  command
      .add_option("--store", store,
                  "Keep jobs in PostgreSQL, for several servers: postgresql://USER@HOST/DATABASE")
      ->type_name("URL");
}

void add_keys(CLI::App& app) {
  CLI::App* keys =
      app.add_subcommand("keys", "Who may use a server: add, list and remove API keys");
  keys->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, bool named, auto* run) {
    CLI::App* command = keys->add_subcommand(name, help);
    auto o = std::make_shared<StoreFlags>();
    if (named) command->add_option("name", o->name, "Whose it is")->required()->type_name("NAME");
    add_store_options(*command, o->data, o->store);
    command->callback([o, run] { run(*o); });
  };
  add("add", "Makes a key and shows it once; only its hash is kept", true, add_key);
  add("list", "Names, and the days on which they were made", false, list_keys);
  add("remove", "Takes a key back, and the sessions that were begun with it", true, remove_key);

  CLI::App* backup =
      app.add_subcommand("backup", "Copies a server's jobs and results, also while it runs");
  backup->footer(
      "The copy is a store like the original: to restore it, put it in the place of halftone.db "
      "in\n"
      "the data folder while no server runs. Adapters, models and pictures are files of that "
      "folder.");
  auto o = std::make_shared<StoreFlags>();
  add_store_options(*backup, o->data, o->store);
  backup->add_option("-o,--output", o->output, "The file to write")->required()->type_name("FILE");
  backup->callback([o] {
    check_output_file(o->output);
    store_of(*o)->backup(o->output);
    fmt::print("{}\n", o->output);
  });
}

}  // namespace halftone::cli
