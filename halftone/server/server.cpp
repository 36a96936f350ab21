#include "halftone/server/server.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "halftone/base/error.h"
#include "halftone/base/version.h"
#include "halftone/io/output.h"
#include "halftone/server/api.h"
#include "halftone/server/clock.h"
#include "halftone/server/generate_worker.h"
#include "halftone/server/http_server.h"
#include "halftone/server/long_worker.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

bool is_local(const std::string& host) {
  return host == "::1" || host == "localhost" || host.starts_with("127.");
}

// An adapter that another server has trained comes from the store, where this one has none of its
// name.
bool fetch_adapter(Store& store, const DataFolders& folders, const std::string& name) {
  constexpr int kMost = 1000;  // trainings, the latest
  for (const StoredJob& job : store.list({"train", JobState::kDone, "", kMost})) {
    const auto request = nlohmann::json::parse(job.request, nullptr, false);
    if (!request.is_object() || request.value("name", "") != name) continue;
    const std::string file = name + ".safetensors";
    const std::optional<StoredFile> stored = store.file(job.id, file);
    if (!stored || stored->bytes.empty() || request.value("mode", "") != "lora") continue;
    write_file(folders.loras / file, stored->bytes);
    return true;
  }
  return false;
}

ShelfOptions shelf_options(const ServerOptions& options, const DataFolders& folders, Store& store) {
  ShelfOptions shelf;
  if (store.is_shared()) {
    shelf.fetch_adapter = [&](const std::string& name) {
      return fetch_adapter(store, folders, name);
    };
  }
  shelf.models = options.models;
  if (const std::string shipped = default_model(); !shipped.empty()) {
    shelf.models.emplace_back(shipped);
  }
  shelf.models.push_back(folders.models);
  shelf.loras = {folders.loras};
  shelf.loras.insert(shelf.loras.end(), options.loras.begin(), options.loras.end());
  shelf.device = options.device;
  shelf.text_precision = options.text_precision;
  shelf.threads = options.threads;
  shelf.threshold = options.threshold;
  return shelf;
}

// Who is to show a key.
Auth::Need whose_need(const ServerOptions& options) {
  if (options.open) return Auth::Need::kNobody;
  return is_local(options.host) ? Auth::Need::kIfThereAreKeys : Auth::Need::kEverybody;
}

// What the server may be called where no key protects it.
std::vector<std::string> known_hosts(const ServerOptions& options) {
  std::vector<std::string> hosts = {"localhost", options.host};
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) == 0 && !is_local(options.host))
    hosts.emplace_back(name);
  hosts.insert(hosts.end(), options.hosts.begin(), options.hosts.end());
  for (std::string& host : hosts) {
    for (char& c : host) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  }
  return hosts;
}

void check_openness(const ServerOptions& options, Store& store) {
  if (is_local(options.host) || options.open || !store.keys().empty()) return;
  throw Error(ErrorCode::kUsage, "host",
              "{} lets other machines in, and there is no API key yet: make one with 'halftone "
              "keys add NAME', or say --open to let everyone in",
              options.host);
}

constexpr const char* kPagePolicy =
    "default-src 'self'; img-src 'self' blob: data:; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'";

void add_safety_headers(HttpResponse& response) {
  const bool own = std::ranges::any_of(response.headers, [](const auto& header) {
    return header.first == "Content-Security-Policy";
  });
  if (!own) response.headers.emplace_back("Content-Security-Policy", kPagePolicy);
  response.headers.emplace_back("X-Content-Type-Options", "nosniff");
  response.headers.emplace_back("Referrer-Policy", "no-referrer");
  response.headers.emplace_back("Cross-Origin-Resource-Policy", "same-origin");
}

// What leaves through it is as safe as everything else, and counted.
class SafeExchange : public HttpExchange {
 public:
  SafeExchange(std::shared_ptr<HttpExchange> inner, Metrics& metrics)
      : inner_(std::move(inner)), metrics_(metrics) {}
  const HttpRequest& request() const override { return inner_->request(); }
  void reply(HttpResponse response) override {
    add_safety_headers(response);
    metrics_.add(fmt::format("halftone_requests_total{{status=\"{}\"}}", response.status));
    inner_->reply(std::move(response));
  }
  void on_gone(std::function<void()> gone) override { inner_->on_gone(std::move(gone)); }

 private:
  std::shared_ptr<HttpExchange> inner_;
  Metrics& metrics_;
};

}  // namespace

class Server::Impl {
 public:
  Impl(Engine& engine, const ServerOptions& options)
      : options_(options),
        log_(options.log),
        folders_(options.data),
        store_(open_store(options, StoreUse::kServer)),
        shelf_(engine, shelf_options(options, folders_, *store_)),
        datasets_(folders_.datasets, options.datasets),
        hub_(*store_),
        auth_(*store_, whose_need(options), known_hosts(options)),
        schemas_(options.limits),
        api_{shelf_,
             *store_,
             hub_,
             metrics_,
             previews_,
             datasets_,
             auth_,
             folders_,
             options_.limits,
             schemas_,
             [this] { return pictures_->loaded(); },
             [this] {
               pictures_->wake();
               long_work_->wake();
             },
             [this](const std::string& job) {
               pictures_->cancel({job});
               long_work_->cancel({job});
             },
             [this] { return http_ == nullptr ? 0 : http_->connections(); },
             stopping_,
             wall_seconds()} {
    check_openness(options_, *store_);
    for (const auto add :
         {add_operation_routes, add_native_routes, add_job_routes, add_lora_routes,
          add_dataset_routes, add_openai_routes, add_sdapi_routes, add_page_routes}) {
      add(router_, api_);
    }
    GenerateWorkerOptions worker;
    worker.most_rows = options_.most_rows;
    worker.max_memory = options_.max_memory;
    // First, what may fail: an address that is taken.
    http_ = std::make_unique<HttpServer>(http_options(), [this](const auto& exchange) {
      answer(std::make_shared<SafeExchange>(exchange, metrics_));
    });
    // Signals are for whoever waits for them.
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, &before);
    pictures_ = std::make_unique<GenerateWorker>(
        GenerateWorker::With{engine, shelf_, *store_, metrics_, previews_, log_}, worker);
    long_work_ = std::make_unique<LongWorker>(
        LongJob::With{engine, shelf_, *store_, datasets_, folders_, log_}, metrics_, log_);
    ticker_ = std::thread([this] { tick(); });
    http_->start();
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!shelf_.device_why().empty()) {
      log_.warn("fallback", {{"asked", options_.device}, {"why", shelf_.device_why()}});
    }
    log_.info("serving", {{"url", url()}, {"version", version()}, {"store", store_->name()}});
  }

  ~Impl() { stop(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  uint16_t port() const { return http_->port(); }
  std::string url() const {
    const bool v6 = options_.host.find(':') != std::string::npos;
    const std::string host = v6 ? "[" + options_.host + "]" : options_.host;
    return fmt::format("http://{}:{}", host, http_->port());
  }
  bool needs_key() const { return auth_.needs_key(); }

  void stop() {
    if (stopping_.exchange(true)) return;
    log_.info("stopping");  // new jobs are refused, and balancers told
    std::thread both([this] {
      if (long_work_ != nullptr) long_work_->stop();
    });
    if (pictures_ != nullptr) pictures_->stop(options_.grace);
    both.join();
    {
      const std::scoped_lock lock(tick_mutex_);
      ended_ = true;
    }
    tick_now_.notify_all();
    if (ticker_.joinable()) ticker_.join();
    hub_.let_go();
    if (http_ != nullptr) http_->stop_listening();
    if (http_ != nullptr) http_->stop();  // answers to those who waited are on their way
    log_.info("stopped");
  }

 private:
  HttpOptions http_options() {
    HttpOptions http;
    http.host = options_.host == "localhost" ? "127.0.0.1" : options_.host;
    http.port = options_.port;
    http.most_connections = options_.most_connections;
    http.on_dropped = [this](const std::string& why) { connection_dropped(why); };
    http.most_bytes = [this](const std::string& method, const std::string& path) -> uint64_t {
      constexpr uint64_t kJson = 1 << 20;
      try {
        const Router::Match match = router_.find(method, path);
        if (!match.route->takes_bytes) return kJson;
        const int64_t own = match.route->most_bytes;
        return static_cast<uint64_t>(own > 0 ? own : options_.limits.most_upload_bytes);
      } catch (const ApiError&) {
        return kJson;
      }
    };
    http.refusal = [this](int status, const std::string& reason) {
      HttpResponse response = error_response({status,
                                              status == 413   ? "too_large"
                                              : status == 404 ? "not_found"
                                                              : "invalid",
                                              "", reason});
      add_safety_headers(response);
      metrics_.add(fmt::format("halftone_requests_total{{status=\"{}\"}}", status));
      return response;
    };
    return http;
  }

  void answer(const std::shared_ptr<HttpExchange>& exchange) {
    const HttpRequest& request = exchange->request();
    try {
      const Router::Match match = router_.find(request.method, request.path);
      ApiCall call{request, match.path, auth_.check(request, match.route->open), {}};
      if (match.route->body != nullptr) call.body = Router::read_body(request);
      if (match.route->answer_later) {
        match.route->answer_later(call, exchange);
      } else {
        exchange->reply(match.route->answer(call));
      }
    } catch (const ApiError& error) {
      exchange->reply(error_response(error));
    } catch (const Error& error) {
      const ApiError told = api_error(error);
      if (told.status >= 500)
        log_.warn("request failed", {{"path", request.path}, {"why", error.what()}});
      exchange->reply(error_response(told));
    } catch (const std::exception& error) {  // of a library: the server goes on
      log_.write(Log::Level::kError, "request failed",
                 {{"path", request.path}, {"why", error.what()}});
      exchange->reply(error_response({500, "internal", "", "something went wrong here"}));
    }
  }

  // A flood of connections is not to become one of lines.
  void connection_dropped(const std::string& why) {
    metrics_.add("halftone_connections_dropped_total");
    ++dropped_;
    constexpr double kEvery = 10;  // seconds
    const double now = steady_seconds();
    if (dropped_told_ > 0 && now - dropped_told_ < kEvery) return;
    log_.warn("connections dropped", {{"count", dropped_}, {"why", why}});
    dropped_ = 0;
    dropped_told_ = now;
  }

  // What has to be done now and then.
  void tick() {
    // Often enough that a lease lasts, also where one time is missed.
    constexpr double kSeconds = 0.5, kMostSeconds = 5;
    const int renew_every =
        std::max(1, static_cast<int>(std::min(options_.lease / 4, kMostSeconds) / kSeconds));
    for (int count = 0;; ++count) {
      {
        std::unique_lock lock(tick_mutex_);
        constexpr std::chrono::milliseconds kEvery(500);
        if (tick_now_.wait_for(lock, kEvery, [&] { return ended_; })) return;
      }
      try {
        if (count % renew_every == 0) store_->renew();
        const std::vector<std::string> ended = store_->cancelling();
        if (ended.empty()) continue;
        pictures_->cancel(ended);
        long_work_->cancel(ended);
      } catch (const Error& error) {
        log_.warn("the store cannot be reached", {{"why", error.what()}});
      }
    }
  }

  ServerOptions options_;
  std::atomic<bool> stopping_{false};
  Log log_;
  Metrics metrics_;
  Previews previews_;
  DataFolders folders_;
  std::unique_ptr<Store> store_;
  Shelf shelf_;
  Datasets datasets_;
  EventHub hub_;
  Auth auth_;
  RequestSchemas schemas_;
  ApiContext api_;
  Router router_;
  std::unique_ptr<GenerateWorker> pictures_;
  std::unique_ptr<LongWorker> long_work_;
  std::mutex tick_mutex_;
  std::condition_variable tick_now_;
  bool ended_ = false;
  std::thread ticker_;
  int64_t dropped_ = 0;  // connections since the line that told of some; of one thread
  double dropped_told_ = 0;
  std::unique_ptr<HttpServer> http_;  // goes first: its requests use all of the others
};

Server::Server(Engine& engine, const ServerOptions& options)
    : impl_(std::make_unique<Impl>(engine, options)) {}
Server::~Server() = default;
uint16_t Server::port() const { return impl_->port(); }
std::string Server::url() const { return impl_->url(); }
bool Server::needs_key() const { return impl_->needs_key(); }
void Server::stop() { impl_->stop(); }

fs::path usual_data_folder() {
  const char* data = std::getenv("XDG_DATA_HOME");
  if (data != nullptr && *data == '/') return fs::path(data) / "halftone";
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home == '/') return fs::path(home) / ".local/share/halftone";
  return "halftone-data";
}

std::unique_ptr<Store> open_store(const ServerOptions& options, StoreUse use) {
  if (options.store.empty()) {
    const DataFolders folders(options.data);
    return open_sqlite_store((folders.root / "halftone.db").string(), use);
  }
  if (options.store.starts_with("postgresql://") || options.store.starts_with("postgres://")) {
    return open_postgres_store(options.store, options.lease);
  }
  throw Error(ErrorCode::kUsage, "store", "'{}' is no postgresql://...", printable(options.store));
}

}  // namespace halftone
