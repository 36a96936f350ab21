// SQLite with C++'s lifetimes: a database that keeps its statements prepared, queries that are
// reset when they are left, and transactions that are rolled back unless they were committed.
// Not safe for several threads at once. Every failure is an Error{kIo} with the file named.
#pragma once

#include <sqlite3.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

namespace halftone::sqlite {

// Bytes, which must live until the statement has run.
struct Blob {
  std::string_view bytes;
};

class Database;

// A statement that runs: `while (query.next())` reads row by row.
class Query {
 public:
  ~Query();
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  bool next();
  int64_t integer(int column) const { return sqlite3_column_int64(statement_, column); }
  double number(int column) const { return sqlite3_column_double(statement_, column); }
  std::string text(int column) const;  // or the bytes of a blob

 private:
  friend class Database;
  template <class... Args>
  Query(Database& database, sqlite3_stmt* statement, const Args&... args)
      : database_(database), statement_(statement) {
    int index = 0;
    (bind(++index, args), ...);
  }
  void bind(int index, std::string_view text);
  void bind(int index, const Blob& blob);
  void bind(int index, std::integral auto value) { bind_integer(index, value); }
  void bind(int index, double value);
  void bind_integer(int index, int64_t value);

  Database& database_;
  sqlite3_stmt* statement_;
};

class Database {
 public:
  enum class Access { kReadOnly, kReadWrite };
  Database(const std::string& path, Access access);

  const std::string& path() const { return path_; }
  // The parameters ?1, ?2, ... in their order. Of the same SQL one runs at a time.
  template <class... Args>
  Query query(const std::string& sql, const Args&... args) {
    return Query(*this, prepared(sql), args...);
  }
  // How many rows were written.
  template <class... Args>
  int64_t run(const std::string& sql, const Args&... args) {
    Query made = query(sql, args...);
    while (made.next()) {
    }
    return sqlite3_changes64(handle_.get());
  }
  // One or more statements without parameters, which are not kept.
  void execute(const std::string& sql);

 private:
  friend class Query;
  friend class Transaction;
  struct Close {
    void operator()(sqlite3* handle) const { sqlite3_close_v2(handle); }
  };
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };

  sqlite3_stmt* prepared(const std::string& sql);
  void check(int result) const;

  std::string path_;
  std::unique_ptr<sqlite3, Close> handle_;
  std::unordered_map<std::string, std::unique_ptr<sqlite3_stmt, Finalize>> statements_;
  bool synced_ = false;  // whether commits are, at present
};

class Transaction {
 public:
  // kCommits: what was committed is on the disk. kNot: it outlives the process, and may be lost
  // with the machine; never in part.
  enum class Sync { kCommits, kNot };
  Transaction(Database& database, Sync sync);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  void commit();

 private:
  Database& database_;
};

}  // namespace halftone::sqlite
