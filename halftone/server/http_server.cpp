#include "halftone/server/http_server.h"

#include <pthread.h>

#include <atomic>
#include <boost/asio.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/version.hpp>
#include <csignal>
#include <cstring>
#include <mutex>
#include <thread>

#include "halftone/base/error.h"

namespace halftone {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::awaitable;
using asio::use_awaitable;
using asio::ip::tcp;
using boost::system::error_code;
using Timer = asio::steady_timer;
// Errors as values: a connection that breaks is nothing special.
constexpr auto use_result = asio::as_tuple(use_awaitable);

// Wakes the coroutine of its connection, from any thread.
class Bell : public std::enable_shared_from_this<Bell> {
 public:
  explicit Bell(const asio::any_io_executor& strand) : strand_(strand), timer_(strand) {}

  void ring() {
    asio::post(strand_, [self = shared_from_this()] {
      self->rung_ = true;
      self->timer_.cancel();
    });
  }
  // Until it is rung, or so much time has gone by; on the strand.
  awaitable<void> wait(std::chrono::steady_clock::duration most) {
    if (!rung_) {
      timer_.expires_after(most);
      co_await timer_.async_wait(use_result);
    }
    rung_ = false;
  }

 private:
  asio::any_io_executor strand_;
  Timer timer_;
  bool rung_ = false;
};

class Exchange : public HttpExchange {
 public:
  Exchange(HttpRequest request, std::shared_ptr<Bell> bell)
      : request_(std::move(request)), bell_(std::move(bell)) {}

  const HttpRequest& request() const override { return request_; }
  void reply(HttpResponse response) override {
    {
      const std::scoped_lock lock(mutex_);
      if (response_ || is_gone_) return;
      response_ = std::move(response);
      gone_ = nullptr;
    }
    bell_->ring();
  }
  void on_gone(std::function<void()> gone) override {
    {
      const std::scoped_lock lock(mutex_);
      if (response_) return;
      if (!is_gone_) {
        gone_ = std::move(gone);
        return;
      }
    }
    gone();
  }

  bool has_reply() {
    const std::scoped_lock lock(mutex_);
    return response_.has_value();
  }
  HttpResponse take() {
    const std::scoped_lock lock(mutex_);
    return std::move(*response_);
  }
  void go() {
    std::function<void()> gone;
    {
      const std::scoped_lock lock(mutex_);
      is_gone_ = true;
      gone = std::move(gone_);
      gone_ = nullptr;
    }
    if (gone) gone();
  }

 private:
  HttpRequest request_;
  std::shared_ptr<Bell> bell_;
  std::mutex mutex_;
  std::optional<HttpResponse> response_;
  std::function<void()> gone_;
  bool is_gone_ = false;
};

HttpRequest plain_request(http::request<http::string_body>&& from, HttpTarget&& target) {
  HttpRequest request;
  request.method = std::string(from.method_string());
  request.path = std::move(target.path);
  request.query = std::move(target.query);
  for (const auto& field : from) {
    std::string name(field.name_string());
    for (char& c : name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    request.headers[name] = std::string(field.value());
  }
  request.body = std::move(from.body());
  return request;
}

// What two servers in a row might read in different ways; null where there is nothing.
const char* problem_of(const http::request<http::string_body>& request) {
  if (request.count(http::field::host) > 1) return "there is more than one Host";
  if (request.count(http::field::host) == 0 && request.version() >= 11) return "there is no Host";
  if (request.count(http::field::content_length) > 1) return "there is more than one length";
  const auto coding = request[http::field::transfer_encoding];
  if (!coding.empty() && !beast::iequals(coding, "chunked"))
    return "bodies may be chunked, no more";
  return nullptr;
}

// Whether the other side has closed, found without taking anything from it.
bool is_closed(tcp::socket& socket) {
  char byte = 0;
  const auto got = ::recv(socket.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(const HttpOptions& options, HttpHandler handler)
      : options_(options), handler_(std::move(handler)), acceptor_(asio::make_strand(context_)) {
    listen();
  }

  void start() {
    asio::co_spawn(acceptor_.get_executor(), accept(), asio::detached);
    // Signals are for whoever waits for them, not for these threads.
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, &before);
    for (int i = 0; i < std::max(1, options_.threads); ++i) {
      threads_.emplace_back([this] { context_.run(); });
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  ~Impl() { stop(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  uint16_t port() const { return port_; }
  int connections() const { return connections_; }

  void stop_listening() {
    asio::post(acceptor_.get_executor(), [this] {
      error_code ignored;
      acceptor_.close(ignored);
    });
  }
  void stop() {
    ending_ = true;
    constexpr std::chrono::milliseconds kLook(5), kMost(2000);
    const bool runs = !threads_.empty() && !context_.stopped();
    for (auto waited = kLook; runs && answering_ > 0 && waited < kMost; waited += kLook) {
      std::this_thread::sleep_for(kLook);
    }
    context_.stop();
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

 private:
  void listen() {
    error_code error;
    const auto address = asio::ip::make_address(options_.host, error);
    if (error) {
      throw Error(ErrorCode::kUsage, "host", "'{}' is no address such as 127.0.0.1 or ::1",
                  printable(options_.host));
    }
    const tcp::endpoint at(address, options_.port);
    acceptor_.open(at.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(at, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      const bool address_is_wrong = error == std::errc::address_not_available ||
                                    error == std::errc::address_family_not_supported;
      throw Error(ErrorCode::kIo, address_is_wrong ? "host" : "port", "cannot listen on {}:{}: {}",
                  options_.host, options_.port, error.message());
    }
    port_ = acceptor_.local_endpoint().port();
  }

  awaitable<void> accept() {
    while (acceptor_.is_open()) {
      auto [error, socket] =
          co_await acceptor_.async_accept(asio::make_strand(context_), use_result);
      if (error == asio::error::operation_aborted) co_return;
      if (error) {  // no more descriptors, say: let some go first
        if (options_.on_dropped) options_.on_dropped(error.message());
        Timer pause(acceptor_.get_executor(), std::chrono::milliseconds(100));
        co_await pause.async_wait(use_result);
        continue;
      }
      if (connections_ >= options_.most_connections) {
        if (options_.on_dropped) {
          options_.on_dropped(fmt::format("{} are open already", options_.most_connections));
        }
        continue;  // closes it
      }
      ++connections_;
      const auto strand = socket.get_executor();
      asio::co_spawn(strand, session(std::move(socket)),
                     [this](const std::exception_ptr&) { --connections_; });
    }
  }

  using Parser = http::request_parser<http::string_body>;

  class Answering {
   public:
    explicit Answering(std::atomic<int>& count) : count_(count) { ++count_; }
    ~Answering() { --count_; }
    Answering(const Answering&) = delete;
    Answering& operator=(const Answering&) = delete;

   private:
    std::atomic<int>& count_;
  };

  awaitable<void> session(tcp::socket socket) {
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    beast::tcp_stream stream(std::move(socket));
    beast::flat_buffer buffer;
    for (bool first = true;; first = false) {
      Parser parser;
      parser.header_limit(32 << 10);
      parser.body_limit(boost::none);  // until it is known what the body is for
      stream.expires_after(first ? options_.header_timeout : options_.idle_timeout);
      auto [error, size] = co_await http::async_read_header(stream, buffer, parser, use_result);
      if (error == http::error::end_of_stream || error == beast::error::timeout) break;
      if (error) {
        co_await refuse(stream, error);
        break;
      }
      const Answering counted(answering_);
      if (!co_await read_body(stream, buffer, parser)) break;
      const bool keep_alive = parser.get().keep_alive();
      if (!co_await answer(stream, parser.release())) break;
      if (!keep_alive || ending_) break;
    }
    stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
  }

  awaitable<bool> read_body(beast::tcp_stream& stream, beast::flat_buffer& buffer, Parser& parser) {
    const auto target = parse_target(parser.get().target());
    constexpr uint64_t kUsual = 1 << 20;
    const uint64_t most =
        options_.most_bytes && target
            ? options_.most_bytes(std::string(parser.get().method_string()), target->path)
            : kUsual;
    parser.body_limit(most);
    const auto length = parser.content_length();
    if (length && *length > most) {
      co_await refuse(stream, http::error::body_limit);
      co_return false;
    }
    if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
      http::response<http::empty_body> go_on(http::status::continue_, 11);
      co_await http::async_write(stream, go_on, use_result);
    }
    stream.expires_after(options_.body_timeout);
    auto [error, size] = co_await http::async_read(stream, buffer, parser, use_result);
    if (!error) co_return true;
    co_await refuse(stream, error);
    co_return false;
  }

  // False where the connection is not to be used any more.
  awaitable<bool> answer(beast::tcp_stream& stream, http::request<http::string_body> from) {
    const bool keep_alive = from.keep_alive(), head = from.method() == http::verb::head;
    auto target = parse_target(from.target());
    if (const char* problem = problem_of(from)) {
      HttpResponse refusal = options_.refusal(400, problem);
      co_return co_await send(stream, refusal, false, head);
    }
    if (!target) {
      HttpResponse refusal = options_.refusal(400, "the target is no path");
      co_return co_await send(stream, refusal, false, head);
    }
    const auto bell = std::make_shared<Bell>(stream.get_executor());
    const auto exchange =
        std::make_shared<Exchange>(plain_request(std::move(from), std::move(*target)), bell);
    handler_(exchange);
    stream.expires_never();
    constexpr std::chrono::seconds kLook(1);  // whether the client is still there
    while (!exchange->has_reply()) {
      co_await bell->wait(kLook);
      if (exchange->has_reply() || !is_closed(stream.socket())) continue;
      exchange->go();
      co_return false;
    }
    HttpResponse response = exchange->take();
    co_return co_await send(stream, response, keep_alive, head);
  }

  template <class Body>
  static void put_headers(http::response<Body>& message, const HttpResponse& from,
                          bool keep_alive) {
    message.result(static_cast<unsigned>(from.status));
    message.version(11);
    message.set(http::field::server, "halftone");
    if (!from.type.empty()) message.set(http::field::content_type, from.type);
    for (const auto& [name, value] : from.headers) message.insert(name, value);
    message.keep_alive(keep_alive);
  }

  // (By reference: g++ 12 destroys temporaries that are handed to a coroutine twice.)
  awaitable<bool> send(beast::tcp_stream& stream, HttpResponse& response, bool keep_alive,
                       bool head) {
    stream.expires_after(options_.body_timeout);
    if (response.stream) co_return co_await send_stream(stream, response, head);
    if (!response.file.empty()) {
      http::response<http::file_body> message;
      error_code error;
      message.body().open(response.file.c_str(), beast::file_mode::scan, error);
      if (error) {
        HttpResponse refusal = options_.refusal(404, "is not there any more");
        co_return co_await send(stream, refusal, keep_alive, head);
      }
      put_headers(message, response, keep_alive);
      message.prepare_payload();
      co_return co_await write(stream, message, keep_alive, head);
    }
    http::response<http::string_body> message;
    put_headers(message, response, keep_alive);
    message.body() = std::move(response.body);
    const bool has_body = response.status != 204 && response.status != 304;
    if (has_body) {
      message.prepare_payload();
    } else {
      message.erase(http::field::content_type);
    }
    co_return co_await write(stream, message, keep_alive, head);
  }

  template <class Body>
  awaitable<bool> write(beast::tcp_stream& stream, http::response<Body>& message, bool keep_alive,
                        bool head) {
    http::response_serializer<Body> serializer(message);
    error_code error;
    if (head) {
      std::tie(error, std::ignore) =
          co_await http::async_write_header(stream, serializer, use_result);
    } else {
      std::tie(error, std::ignore) = co_await http::async_write(stream, serializer, use_result);
    }
    co_return !error && keep_alive;
  }

  // In chunks, as they come.
  awaitable<bool> send_stream(beast::tcp_stream& stream, const HttpResponse& response, bool head) {
    http::response<http::empty_body> message;
    put_headers(message, response, false);
    message.chunked(true);
    http::response_serializer<http::empty_body> serializer(message);
    auto [error, size] = co_await http::async_write_header(stream, serializer, use_result);
    if (error || head) co_return false;
    const auto bell = std::make_shared<Bell>(stream.get_executor());
    response.stream->on_ready([bell] { bell->ring(); });
    auto quiet_since = std::chrono::steady_clock::now();
    constexpr std::chrono::seconds kLook(1);
    while (!error) {
      std::optional<std::string> more = response.stream->next();
      if (!more) {
        const auto last = http::make_chunk_last();
        std::tie(error, size) = co_await asio::async_write(stream, last, use_result);
        break;
      }
      const auto now = std::chrono::steady_clock::now();
      if (more->empty() && now - quiet_since >= options_.heartbeat) {
        *more = response.stream->heartbeat();
      }
      if (!more->empty()) {
        quiet_since = now;
        stream.expires_after(options_.header_timeout);
        const auto chunk = http::make_chunk(asio::const_buffer(more->data(), more->size()));
        std::tie(error, size) = co_await asio::async_write(stream, chunk, use_result);
        stream.expires_never();
        continue;
      }
      if (is_closed(stream.socket())) break;
      co_await bell->wait(kLook);
    }
    response.stream->on_ready({});
    co_return false;
  }

  awaitable<void> refuse(beast::tcp_stream& stream, error_code error) {
    const bool large = error == http::error::body_limit || error == http::error::header_limit;
    const bool malformed =
        error.category() == http::make_error_code(http::error::bad_version).category();
    if (!malformed) co_return;  // the connection is gone
    const std::string reason =
        large ? "the request is too large" : "is no HTTP request: " + error.message();
    HttpResponse refusal = options_.refusal(large ? 413 : 400, reason);
    co_await send(stream, refusal, false, false);
    // What is still on its way is read, or the answer might be lost with the connection.
    stream.expires_after(std::chrono::seconds(2));
    error_code ignored;
    stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
    char scratch[4096];
    for (int i = 0; i < 256; ++i) {
      auto [ended, size] = co_await stream.async_read_some(asio::buffer(scratch), use_result);
      if (ended) break;
    }
  }

  HttpOptions options_;
  HttpHandler handler_;
  std::atomic<int> connections_{0}, answering_{0};  // outlive the coroutines that count in them
  std::atomic<bool> ending_{false};
  asio::io_context context_;
  tcp::acceptor acceptor_;
  uint16_t port_ = 0;
  std::vector<std::thread> threads_;
};

HttpServer::HttpServer(const HttpOptions& options, HttpHandler handler)
    : impl_(std::make_unique<Impl>(options, std::move(handler))) {}
HttpServer::~HttpServer() = default;
void HttpServer::start() { impl_->start(); }
uint16_t HttpServer::port() const { return impl_->port(); }
int HttpServer::connections() const { return impl_->connections(); }
void HttpServer::stop_listening() { impl_->stop_listening(); }
void HttpServer::stop() { impl_->stop(); }

}  // namespace halftone
