// libpq with C++'s lifetimes: connections, results, transactions that are rolled back unless they
// were committed, and a pool that forgets connections that were lost. SQL and its parameters are
// sent apart from each other, always. Every failure is an Error{kIo}.
#pragma once

#include <concepts>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct pg_conn;
struct pg_result;

namespace halftone::postgres {

struct Blob {
  std::string_view bytes;
};

// A parameter $1, $2, ... as it is sent.
class Parameter {
 public:
  explicit Parameter(std::string_view text);
  explicit Parameter(const Blob& blob) : bytes_(blob.bytes), binary_(true) {}
  explicit Parameter(std::integral auto value) : bytes_(std::to_string(value)) {}  // or boolean
  explicit Parameter(double value);
  explicit Parameter(const std::vector<std::string>& names);  // text[]

  const std::string& bytes() const { return bytes_; }
  bool binary() const { return binary_; }

 private:
  std::string bytes_;
  bool binary_ = false;
};

class Result {
 public:
  explicit Result(pg_result* result) : result_(result) {}
  int rows() const;
  int64_t changed() const;  // rows written
  std::string text(int row, int column) const;
  int64_t integer(int row, int column) const;
  double number(int row, int column) const;
  bool truth(int row, int column) const { return text(row, column) == "t"; }

 private:
  struct Clear {
    void operator()(pg_result* result) const;
  };
  std::unique_ptr<pg_result, Clear> result_;
};

// Something to wait for together with a socket.
class Wake {
 public:
  Wake();
  ~Wake();
  Wake(const Wake&) = delete;
  Wake& operator=(const Wake&) = delete;
  void set() const;
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

// Used by one thread at a time.
class Connection {
 public:
  // Waits some seconds for the server, or until `stop` is set.
  explicit Connection(const std::string& url, const Wake* stop = nullptr);

  template <class... Args>
  Result run(const std::string& sql, const Args&... args) {
    return send(sql, {Parameter(args)...}, false);
  }
  // Columns are as they lie in the database: text and bytea, which then are not written as text.
  template <class... Args>
  Result run_binary(const std::string& sql, const Args&... args) {
    return send(sql, {Parameter(args)...}, true);
  }
  Result run_script(const std::string& sql);  // several statements, without parameters

  bool usable() const;  // connected, and in no transaction
  // False where the connection was lost. Takes what has been notified off it.
  bool take_notifications(bool& any);
  int socket() const;

 private:
  struct Finish {
    void operator()(pg_conn* connection) const;
  };
  Result send(const std::string& sql, const std::vector<Parameter>& parameters, bool binary);
  Result checked(pg_result* result);

  std::unique_ptr<pg_conn, Finish> connection_;
};

class Transaction {
 public:
  // kNot: committed before it is on the server's disk, whose crash may lose it; never in part.
  enum class Sync { kCommits, kNot };
  Transaction(Connection& connection, Sync sync);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  void commit();

 private:
  Connection& connection_;
  bool open_ = true;
};

// Some connections, made when they are first needed. When one is lost the idle ones go with it: the
// server was restarted, and they would only fail one call after another.
class Pool {
 public:
  explicit Pool(std::string url) : url_(std::move(url)) {}

  class Lease {
   public:
    Lease(Pool& pool, std::unique_ptr<Connection> connection)
        : pool_(pool), connection_(std::move(connection)) {}
    ~Lease() { pool_.give_back(std::move(connection_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Connection& operator*() const { return *connection_; }
    Connection* operator->() const { return connection_.get(); }

   private:
    Pool& pool_;
    std::unique_ptr<Connection> connection_;
  };
  Lease take();

 private:
  void give_back(std::unique_ptr<Connection> connection);

  const std::string url_;
  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<std::unique_ptr<Connection>> idle_;
  int taken_ = 0;
};

}  // namespace halftone::postgres
