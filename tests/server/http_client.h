// HTTP for tests, over plain sockets: nothing of the server's own HTTP is trusted. Every connection
// ends within half a minute, and what could not be read is an empty reply with status 0.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace halftone::test {

struct HttpReply {
  int status = 0;
  std::map<std::string, std::string> headers;  // by names in lower case
  std::string body;

  std::string header(const std::string& name) const;
  nlohmann::json json() const;  // discarded where the body is none
};
// The first reply in what a server sent, and how many bytes it took; `head`: it has no body.
HttpReply parse_reply(const std::string& bytes, bool head = false, size_t* taken = nullptr);

class HttpConnection {
 public:
  explicit HttpConnection(uint16_t port, int seconds = 120);  // it is read for so long
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  bool send(std::string_view bytes);  // false: the other side has closed
  std::string read_some();            // empty: it has ended, or nothing came in time
  std::string read_all();

 private:
  int fd_ = -1;
  std::chrono::steady_clock::time_point until_;
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// A connection for each request.
class HttpClient {
 public:
  explicit HttpClient(uint16_t port) : port_(port) {}

  HttpReply send(const std::string& method, const std::string& target, const std::string& body = "",
                 const HttpHeaders& headers = {}) const;
  // Bytes as they are, and all that comes back until the server closes.
  std::string send_raw(const std::string& bytes, int seconds = 120) const;
  uint16_t port() const { return port_; }

 private:
  uint16_t port_;
};

struct SseEvent {
  std::string type;
  int64_t id = 0;
  nlohmann::json data;
};
std::vector<SseEvent> parse_events(const std::string& text);

// A stream of events while it lasts.
class EventReader {
 public:
  EventReader(uint16_t port, const std::string& target, const HttpHeaders& headers = {});
  // nullopt: it has ended.
  std::optional<SseEvent> next();

 private:
  bool take_chunk();

  HttpConnection connection_;
  std::string raw_, text_;
  bool in_body_ = false;
};

}  // namespace halftone::test
