#include "tests/server/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <sstream>

namespace halftone::test {
namespace {

constexpr std::string_view kLine = "\r\n", kEnd = "\r\n\r\n";

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// A chunk of `raw` from `at` on, after which `at` is; nullopt where it is not there as a whole.
std::optional<std::string> read_chunk(const std::string& raw, size_t& at) {
  const size_t line = raw.find(kLine, at);
  if (line == std::string::npos) return std::nullopt;
  const size_t size = std::strtoull(raw.c_str() + at, nullptr, 16);
  const size_t begin = line + kLine.size();
  if (raw.size() < begin + size + kLine.size()) return std::nullopt;
  at = begin + size + kLine.size();
  return raw.substr(begin, size);
}

std::string request_text(const std::string& method, const std::string& target,
                         const std::string& body, const HttpHeaders& headers) {
  std::string text = method + " " + target + " HTTP/1.1\r\n";
  bool has_host = false;
  for (const auto& [name, value] : headers) {
    text += name + ": " + value + "\r\n";
    has_host |= name == "Host";
  }
  if (!has_host) text += "Host: localhost\r\n";
  text += "Connection: close\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n";
  return text + body;
}

}  // namespace

std::string HttpReply::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

nlohmann::json HttpReply::json() const { return nlohmann::json::parse(body, nullptr, false); }

HttpReply parse_reply(const std::string& bytes, bool head, size_t* taken) {
  HttpReply reply;
  const size_t end = bytes.find(kEnd);
  if (!bytes.starts_with("HTTP/1.1 ") || end == std::string::npos) return {};
  std::istringstream lines(bytes.substr(0, end));
  std::string line;
  std::getline(lines, line);
  reply.status = std::atoi(line.c_str() + 9);
  while (std::getline(lines, line)) {
    if (line.ends_with('\r')) line.pop_back();
    const size_t colon = line.find(':');
    if (colon == std::string::npos) return {};
    const size_t value = line.find_first_not_of(' ', colon + 1);
    reply.headers[lower(line.substr(0, colon))] =
        value == std::string::npos ? "" : line.substr(value);
  }
  size_t at = end + kEnd.size();
  if (head) {
  } else if (reply.header("transfer-encoding") == "chunked") {
    while (const auto chunk = read_chunk(bytes, at)) {
      if (chunk->empty()) break;
      reply.body += *chunk;
    }
  } else if (const std::string length = reply.header("content-length"); !length.empty()) {
    reply.body = bytes.substr(at, std::strtoull(length.c_str(), nullptr, 10));
    at += reply.body.size();
  }
  if (taken != nullptr) *taken = at;
  return reply;
}

HttpConnection::HttpConnection(uint16_t port, int seconds)
    : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      until_(std::chrono::steady_clock::now() + std::chrono::seconds(seconds)) {
  const timeval most{seconds, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
  ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) {
    ::close(fd_);
    fd_ = -1;
  }
}
HttpConnection::~HttpConnection() {
  if (fd_ >= 0) ::close(fd_);
}

bool HttpConnection::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

std::string HttpConnection::read_some() {
  if (std::chrono::steady_clock::now() > until_) return "";
  std::array<char, 65536> buffer;
  const ssize_t got = ::recv(fd_, buffer.data(), buffer.size(), 0);
  return {buffer.data(), got > 0 ? static_cast<size_t>(got) : 0};
}

std::string HttpConnection::read_all() {
  std::string all;
  for (std::string more = read_some(); !more.empty(); more = read_some()) all += more;
  return all;
}

HttpReply HttpClient::send(const std::string& method, const std::string& target,
                           const std::string& body, const HttpHeaders& headers) const {
  HttpConnection connection(port_);
  connection.send(request_text(method, target, body, headers));
  return parse_reply(connection.read_all(), method == "HEAD");
}

std::string HttpClient::send_raw(const std::string& bytes, int seconds) const {
  HttpConnection connection(port_, seconds);
  connection.send(bytes);
  return connection.read_all();
}

std::vector<SseEvent> parse_events(const std::string& text) {
  std::vector<SseEvent> events;
  std::istringstream lines(text);
  SseEvent event;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("event: ")) event.type = line.substr(7);
    if (line.starts_with("id: ")) event.id = std::strtoll(line.c_str() + 4, nullptr, 10);
    if (line.starts_with("data: ")) event.data = nlohmann::json::parse(line.substr(6));
    if (!line.empty()) continue;
    if (!event.type.empty()) events.push_back(event);
    event = {};
  }
  return events;
}

EventReader::EventReader(uint16_t port, const std::string& target, const HttpHeaders& headers)
    : connection_(port) {
  connection_.send(request_text("GET", target, "", headers));
}

bool EventReader::take_chunk() {
  for (;;) {
    size_t at = 0;
    if (!in_body_) {
      const size_t end = raw_.find(kEnd);
      if (end != std::string::npos) {
        raw_.erase(0, end + kEnd.size());
        in_body_ = true;
      }
    }
    if (in_body_) {
      if (const auto chunk = read_chunk(raw_, at)) {
        raw_.erase(0, at);
        text_ += *chunk;
        return !chunk->empty();
      }
    }
    const std::string more = connection_.read_some();
    if (more.empty()) return false;
    raw_ += more;
  }
}

std::optional<SseEvent> EventReader::next() {
  for (;;) {
    const size_t end = text_.find("\n\n");
    if (end == std::string::npos) {
      if (!take_chunk()) return std::nullopt;
      continue;
    }
    const auto events = parse_events(text_.substr(0, end + 2));
    text_.erase(0, end + 2);
    if (!events.empty()) return events.front();
  }
}

}  // namespace halftone::test
