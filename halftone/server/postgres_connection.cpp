#include "halftone/server/postgres_connection.h"

#include <libpq-fe.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>

#include "halftone/base/error.h"

namespace halftone::postgres {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kWhere = "postgresql";
constexpr auto kConnectPatience = std::chrono::seconds(10);

// The first line: what follows are details and hints.
std::string first_line(const char* message) {
  std::string text = message == nullptr ? "" : message;
  text = text.substr(0, text.find('\n'));
  return text.empty() ? "the connection was lost" : text;
}

// False where `stop` was set or the time is over.
bool wait_for(int socket, bool writing, const Wake* stop, Clock::time_point until) {
  std::array<pollfd, 2> fds = {pollfd{socket, static_cast<short>(writing ? POLLOUT : POLLIN), 0},
                               pollfd{stop == nullptr ? -1 : stop->fd(), POLLIN, 0}};
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0) return false;
    const int ready = ::poll(fds.data(), fds.size(), static_cast<int>(left));
    if (ready < 0 && errno != EINTR) return false;
    if (ready > 0) return fds[1].revents == 0;
  }
}

// For libpq it would end the text there.
std::string_view without_nul(std::string_view text) {
  if (text.find('\0') != std::string_view::npos) {
    throw Error(ErrorCode::kInvalidInput, kWhere, "a text with a NUL cannot be stored");
  }
  return text;
}

}  // namespace

Parameter::Parameter(std::string_view text) : bytes_(without_nul(text)) {}

Parameter::Parameter(double value) {
  std::array<char, 64> digits{};
  bytes_.assign(digits.data(), std::to_chars(digits.data(), digits.end(), value).ptr);
}

Parameter::Parameter(const std::vector<std::string>& names) : bytes_("{") {
  for (const std::string& name : names) {
    bytes_ += bytes_.size() == 1 ? "\"" : ",\"";
    for (const char c : without_nul(name)) {
      if (c == '"' || c == '\\') bytes_ += '\\';
      bytes_ += c;
    }
    bytes_ += '"';
  }
  bytes_ += '}';
}

void Result::Clear::operator()(pg_result* result) const { PQclear(result); }

int Result::rows() const { return PQntuples(result_.get()); }

std::string Result::text(int row, int column) const {
  return {PQgetvalue(result_.get(), row, column),
          static_cast<size_t>(PQgetlength(result_.get(), row, column))};
}

int64_t Result::changed() const { return std::strtoll(PQcmdTuples(result_.get()), nullptr, 10); }

int64_t Result::integer(int row, int column) const {
  return std::strtoll(PQgetvalue(result_.get(), row, column), nullptr, 10);
}

double Result::number(int row, int column) const {
  const std::string digits = text(row, column);
  double value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

Wake::Wake() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (fd_ < 0) throw Error(ErrorCode::kIo, kWhere, "eventfd: {}", std::strerror(errno));
}

Wake::~Wake() { ::close(fd_); }

void Wake::set() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(fd_, &one, sizeof one);
}

void Connection::Finish::operator()(pg_conn* connection) const { PQfinish(connection); }

Connection::Connection(const std::string& url, const Wake* stop) {
  // What the URL says comes after, and so before, these: a server that is gone without a word is
  // noticed within a minute.
  const std::array names = {"application_name",    "keepalives_idle",
                            "keepalives_interval", "keepalives_count",
                            "tcp_user_timeout",    "dbname",
                            "client_encoding",     static_cast<const char*>(nullptr)};
  const std::array values = {"halftone", "20",        "10",   "3",
                             "30000",    url.c_str(), "UTF8", static_cast<const char*>(nullptr)};
  connection_.reset(PQconnectStartParams(names.data(), values.data(), 1));
  if (!connection_) throw Error(ErrorCode::kOutOfMemory, kWhere, "no memory to connect");
  pg_conn* const made = connection_.get();
  const auto until = Clock::now() + kConnectPatience;
  PostgresPollingStatusType status = PGRES_POLLING_WRITING;
  while (PQstatus(made) != CONNECTION_BAD && status != PGRES_POLLING_OK) {
    if (!wait_for(PQsocket(made), status == PGRES_POLLING_WRITING, stop, until)) {
      throw Error(ErrorCode::kIo, kWhere, "cannot connect: no answer in {} seconds",
                  kConnectPatience.count());
    }
    status = PQconnectPoll(made);
    if (status == PGRES_POLLING_FAILED) break;
  }
  if (PQstatus(made) != CONNECTION_OK) {
    throw Error(ErrorCode::kIo, kWhere, "cannot connect: {}", first_line(PQerrorMessage(made)));
  }
  PQsetNoticeProcessor(made, [](void*, const char*) {}, nullptr);  // not to standard error
  // A server that stands still within a transaction would hold up all others: it loses it.
  run_script(
      "SET lock_timeout = '30s'; SET statement_timeout = '60s'; "
      "SET idle_in_transaction_session_timeout = '20s'; "
      "SET default_transaction_isolation = 'read committed'");
}

Result Connection::checked(pg_result* result) {
  Result owned(result);
  const ExecStatusType status = PQresultStatus(result);
  if (status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK) return owned;
  const char* state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
  const bool full = state != nullptr && std::string_view(state) == "53100";  // disk_full
  const char* primary = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
  throw Error(full ? ErrorCode::kDiskFull : ErrorCode::kIo, kWhere, "{}",
              first_line(primary == nullptr ? PQerrorMessage(connection_.get()) : primary));
}

Result Connection::send(const std::string& sql, const std::vector<Parameter>& parameters,
                        bool binary) {
  std::vector<const char*> values;
  std::vector<int> lengths, formats;
  for (const Parameter& parameter : parameters) {
    values.push_back(parameter.bytes().c_str());
    lengths.push_back(static_cast<int>(parameter.bytes().size()));
    formats.push_back(parameter.binary() ? 1 : 0);
  }
  return checked(PQexecParams(connection_.get(), sql.c_str(), static_cast<int>(values.size()),
                              nullptr, values.data(), lengths.data(), formats.data(),
                              binary ? 1 : 0));
}

Result Connection::run_script(const std::string& sql) {
  return checked(PQexec(connection_.get(), sql.c_str()));
}

bool Connection::usable() const {
  return PQstatus(connection_.get()) == CONNECTION_OK &&
         PQtransactionStatus(connection_.get()) == PQTRANS_IDLE;
}

bool Connection::take_notifications(bool& any) {
  if (PQconsumeInput(connection_.get()) == 0) return false;
  struct Free {
    void operator()(PGnotify* notify) const { PQfreemem(notify); }
  };
  while (std::unique_ptr<PGnotify, Free>(PQnotifies(connection_.get()))) any = true;
  return PQstatus(connection_.get()) == CONNECTION_OK;
}

int Connection::socket() const { return PQsocket(connection_.get()); }

Transaction::Transaction(Connection& connection, Sync sync) : connection_(connection) {
  connection_.run_script(sync == Sync::kCommits ? "BEGIN"
                                                : "BEGIN; SET LOCAL synchronous_commit = off");
}

Transaction::~Transaction() {
  if (!open_) return;
  try {
    connection_.run_script("ROLLBACK");
  } catch (const Error&) {  // lost: the server rolls it back, and the pool drops it
  }
}

void Transaction::commit() {
  connection_.run_script("COMMIT");
  open_ = false;
}

Pool::Lease Pool::take() {
  constexpr int kMostConnections = 4;
  constexpr auto kPatience = std::chrono::seconds(60);
  std::unique_lock lock(mutex_);
  if (!returned_.wait_for(lock, kPatience, [&] { return taken_ < kMostConnections; })) {
    throw Error(ErrorCode::kIo, kWhere, "it is too busy: no connection was free for a minute");
  }
  std::unique_ptr<Connection> connection;
  if (!idle_.empty()) {
    connection = std::move(idle_.back());
    idle_.pop_back();
  }
  ++taken_;
  lock.unlock();
  if (!connection) {
    try {
      connection = std::make_unique<Connection>(url_);
    } catch (...) {
      give_back(nullptr);
      throw;
    }
  }
  return {*this, std::move(connection)};
}

void Pool::give_back(std::unique_ptr<Connection> connection) {
  std::vector<std::unique_ptr<Connection>> lost;  // closed outside of the lock
  {
    const std::lock_guard lock(mutex_);
    --taken_;
    if (connection && connection->usable()) {
      idle_.push_back(std::move(connection));
    } else {
      lost.swap(idle_);
    }
  }
  returned_.notify_one();
}

}  // namespace halftone::postgres
