// Requests and responses as values: what handlers see of HTTP. Nothing here knows a socket.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace halftone {

struct HttpRequest {
  std::string method;                          // "GET"
  std::string path;                            // decoded, without the query
  std::map<std::string, std::string> query;    // decoded
  std::map<std::string, std::string> headers;  // by names in lower case
  std::string body;

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

// A body that is made while it is sent.
class HttpStream {
 public:
  virtual ~HttpStream() = default;
  // What there is to send now, maybe nothing; nullopt: that was all.
  virtual std::optional<std::string> next() = 0;
  // Sent where there is nothing else for a while, so that everyone sees the connection alive.
  virtual std::string heartbeat() const = 0;
  // `ready` is to be called, from any thread, when there may be more; an empty one ends that.
  virtual void on_ready(std::function<void()> ready) = 0;
};

struct HttpResponse {
  int status = 200;
  std::string type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  std::string file;                    // a path, instead of the body
  std::shared_ptr<HttpStream> stream;  // instead of either
};

// One request on its way to its response. From any thread.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual const HttpRequest& request() const = 0;
  virtual void reply(HttpResponse response) = 0;  // the first one counts
  // Called once if the client goes away before there is a reply.
  virtual void on_gone(std::function<void()> gone) = 0;
};
using HttpHandler = std::function<void(const std::shared_ptr<HttpExchange>&)>;

// Text with %XX and, in queries, + for a space; nullopt where it is damaged or holds NUL.
std::optional<std::string> decode_url(std::string_view text, bool plus_is_space);
// "a=1&b=2"; nullopt as above.
std::optional<std::map<std::string, std::string>> parse_query(std::string_view text);
// The path and the query of a target such as "/api/jobs?limit=2".
struct HttpTarget {
  std::string path;
  std::map<std::string, std::string> query;
};
std::optional<HttpTarget> parse_target(std::string_view target);

}  // namespace halftone
