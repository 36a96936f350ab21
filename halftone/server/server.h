// `halftone serve`: the engine behind HTTP. Everything a server is, put together.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "halftone/engine/engine.h"
#include "halftone/server/log.h"
#include "halftone/server/requests.h"
#include "halftone/server/store.h"

namespace halftone {

// Errors name these fields.
struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;
  std::filesystem::path data;  // where jobs, adapters, models and pictures are kept
  std::string store;           // "postgresql://..."; empty: SQLite in the data folder
  std::vector<std::filesystem::path> models, loras, datasets;  // more folders of these
  std::string device = "auto";
  std::string text_precision = "auto";  // of the encoders of all models, as ModelSpec has it
  int threads = 0;
  double threshold = 0.99;
  int most_rows = 8;
  int most_connections = 1024;
  int64_t max_memory = 0;
  bool open = false;               // no keys are needed, although other machines can reach it
  std::vector<std::string> hosts;  // more names that it is reached by
  double grace = 20;               // seconds for pictures that are under way when it stops
  double lease = 30;               // seconds after which others take a silent server's jobs
  RequestLimits limits;
  Log::Options log;
};

class Server {
 public:
  // Listens and works from here on.
  Server(Engine& engine, const ServerOptions& options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const;
  std::string url() const;
  bool needs_key() const;
  // New jobs are refused; what is under way is finished, saved or given back. Returns when that is
  // done.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The folder that is used where none is named: under XDG_DATA_HOME, or ~/.local/share.
std::filesystem::path usual_data_folder();
// The store of these options, for whoever keeps keys or makes copies.
std::unique_ptr<Store> open_store(const ServerOptions& options, StoreUse use);

}  // namespace halftone
