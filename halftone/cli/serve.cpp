// halftone serve: the engine behind HTTP, with a page at its address.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <thread>

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/cli/cli.h"
#include "halftone/cli/config_file.h"
#include "halftone/cli/flags.h"
#include "halftone/cli/serve_flags.h"
#include "halftone/server/server.h"

namespace halftone::cli {
namespace {

struct ServeFlags {
  ServerOptions server;
  std::string data, max_memory, max_upload = "64MiB", max_lora = "512MiB", config,
                                log_level = "info";
  std::vector<std::string> models, loras, datasets;
  double max_megapixels = 16;
};

ServerOptions server_options(const ServeFlags& flags) {
  ServerOptions options = flags.server;
  options.data = flags.data.empty() ? usual_data_folder() : std::filesystem::path(flags.data);
  options.models.assign(flags.models.begin(), flags.models.end());
  options.loras.assign(flags.loras.begin(), flags.loras.end());
  options.datasets.assign(flags.datasets.begin(), flags.datasets.end());
  for (const auto* folders : {&options.models, &options.loras, &options.datasets}) {
    for (const auto& folder : *folders) {
      if (std::filesystem::is_directory(folder)) continue;
      throw Error(ErrorCode::kNotFound, printable(folder.string()), "there is no such folder");
    }
  }
  if (!flags.max_memory.empty()) options.max_memory = parse_bytes(flags.max_memory, "--max-memory");
  options.limits.most_upload_bytes = parse_bytes(flags.max_upload, "--max-upload");
  options.limits.most_lora_bytes = parse_bytes(flags.max_lora, "--max-lora");
  options.limits.most_pixels = static_cast<int64_t>(flags.max_megapixels * 1e6);
  options.log.level = flags.log_level == "debug"     ? Log::Level::kDebug
                      : flags.log_level == "warning" ? Log::Level::kWarning
                      : flags.log_level == "error"   ? Log::Level::kError
                                                     : Log::Level::kInfo;
  return options;
}

void run_serve(const ServeFlags& flags, const Context& context) {
  const ServerOptions options = server_options(flags);
  if (context.watch_interrupts) context.watch_interrupts(true);
  Server server(*context.engine, options);
  fmt::print("halftone is at {}{}\n", server.url(),
             server.needs_key() ? ", for those who have a key" : "");
  std::fflush(stdout);
  while (!context.interrupted || !context.interrupted()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  print_note("halftone serve: ending; once more ends it at once\n");
  server.stop();
}

void add_limits(CLI::App& command, ServeFlags& o) {
  const std::string group = "Limits";
  RequestLimits& limits = o.server.limits;
  command
      .add_option("--max-batch", o.server.most_rows,
                  "Pictures of one model that are made at a time")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 256))
      ->group(group);
  command.add_option("--max-queue", limits.most_queued, "Jobs that may wait; more get 429")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 1000000))
      ->group(group);
  command
      .add_option("--max-memory", o.max_memory, "For models and pictures (default: what is free)")
      ->type_name("SIZE")
      ->group(group);
  command.add_option("--max-megapixels", o.max_megapixels, "Of a picture")
      ->capture_default_str()
      ->type_name("N")
      ->check(finite_number(0.001, 4000))
      ->group(group);
  command.add_option("--max-steps", limits.most_steps, "Of a picture")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 1000))
      ->group(group);
  command.add_option("--max-count", limits.most_count, "Pictures of one request")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 10000))
      ->group(group);
  command.add_option("--max-upload", o.max_upload, "Of a picture to train on")
      ->capture_default_str()
      ->type_name("SIZE")
      ->group(group);
  command.add_option("--max-lora", o.max_lora, "Of an adapter that is uploaded")
      ->capture_default_str()
      ->type_name("SIZE")
      ->group(group);
  command
      .add_option("--grace", o.server.grace,
                  "Seconds for pictures that are under way when the server ends")
      ->capture_default_str()
      ->type_name("S")
      ->check(finite_number(0, 86400))
      ->group(group);
}

void add_serve_command(CLI::App& app, const Context& context) {
  CLI::App* command = app.add_subcommand(
      "serve", "Generate, train, quantize and compare from a browser, or over HTTP");
  command->footer(
      "Opens a page to work with, and an API: its own (see /openapi.json), and those of OpenAI "
      "and\n"
      "A1111 for pictures. Jobs survive whatever ends the server; training goes on from its\n"
      "checkpoint. Examples:\n"
      "  halftone serve\n"
      "  halftone serve --models ~/models --datasets ~/pictures\n"
      "  halftone keys add laptop && halftone serve --host 0.0.0.0");
  auto o = std::make_shared<ServeFlags>();
  ServerOptions& server = o->server;
  command->add_option("--host", server.host, "The address to listen at")
      ->capture_default_str()
      ->type_name("ADDRESS");
  command->add_option("--port", server.port, "0: any that is free")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(0, 65535));
  add_store_options(*command, o->data, server.store);
  const auto several = [&](const char* flag, std::vector<std::string>& to, const char* help) {
    command->add_option(flag, to, help)
        ->type_name("DIR")
        ->expected(1)
        ->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  several("--models", o->models,
          "A model, or a folder of models; may be given several times (the model that comes with "
          "the program, and those made here, are always there)");
  several("--loras", o->loras, "A folder of adapters; may be given several times");
  several("--datasets", o->datasets,
          "A folder with folders of pictures to train on; may be given several times");
  command->add_option("--device", server.device, "auto, cpu or cuda[:N]")
      ->capture_default_str()
      ->type_name("D")
      ->check(device_name());
  command
      ->add_option("--text-precision", server.text_precision,
                   "Of the text encoders of all models: auto, fp32, bf16, fp8, mxfp8, ...")
      ->capture_default_str()
      ->type_name("P")
      ->check(precision_name({"auto"}));
  command->add_option("--threads", server.threads, "CPU threads (default: all)")
      ->type_name("N")
      ->check(CLI::Range(1, 256));
  command->add_flag("--open", server.open,
                    "No keys are needed, although other machines can reach the server");
  command
      ->add_option("--allow-host", server.hosts,
                   "Another name that browsers call this server by, behind a proxy, say")
      ->type_name("NAME")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      ->add_option("--lease", server.lease,
                   "With PostgreSQL: seconds after which others take a silent server's jobs")
      ->capture_default_str()
      ->type_name("S")
      ->check(finite_number(2, 3600));
  command->add_option("--config", o->config, "Flags from this file; those of the command line win")
      ->type_name("FILE.toml");
  command->add_option("--log-file", server.log.file, "Where to log to (default: standard error)")
      ->type_name("FILE");
  command->add_flag("--log-json", server.log.json, "Log lines of JSON");
  command->add_option("--log-level", o->log_level, "debug, info, warning or error")
      ->capture_default_str()
      ->type_name("L")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  add_limits(*command, *o);
  command->callback([o, command, &context] {
    if (!o->config.empty()) apply_config(*command, o->config);
    run_serve(*o, context);
  });
}

}  // namespace

void add_serve(CLI::App& app, const Context& context) {
  add_serve_command(app, context);
  add_keys(app);
}

}  // namespace halftone::cli
