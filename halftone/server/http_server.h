// HTTP/1.1 for many clients at once on a few threads: a coroutine for each connection, none of
// which waits for another. What requests mean is the handler's.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "halftone/server/http_message.h"

namespace halftone {

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any that is free
  int threads = 2;
  int most_connections = 1024;
  std::chrono::seconds header_timeout{15}, body_timeout{300}, idle_timeout{75};
  std::chrono::seconds heartbeat{15};
  // The largest body of a request to this path, by its method; larger ones are refused unread.
  std::function<uint64_t(const std::string& method, const std::string& path)> most_bytes;
  // Of an answer to what is no HTTP or is too large, by status and reason.
  std::function<HttpResponse(int status, const std::string& reason)> refusal;
  // Of a connection that was closed unheard, and why. From one thread.
  std::function<void(const std::string& why)> on_dropped;
};

class HttpServer {
 public:
  // Listens; an Error that names "host" or "port" where it cannot.
  HttpServer(const HttpOptions& options, HttpHandler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  void start();  // answers from here on
  uint16_t port() const;
  int connections() const;
  // No new connections; those that are there may finish what they are at.
  void stop_listening();
  // Answers that are under way get two seconds to end; then everything does. Returns when all
  // threads have.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace halftone
