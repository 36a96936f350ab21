#include "halftone/server/sqlite_database.h"

#include <cstring>

#include "halftone/base/error.h"

namespace halftone::sqlite {

Query::~Query() {
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

bool Query::next() {
  const int result = sqlite3_step(statement_);
  if (result == SQLITE_ROW) return true;
  if (result != SQLITE_DONE) database_.check(result);
  return false;
}

std::string Query::text(int column) const {
  const auto* bytes = static_cast<const char*>(sqlite3_column_blob(statement_, column));
  const int size = sqlite3_column_bytes(statement_, column);
  return bytes == nullptr ? std::string() : std::string(bytes, static_cast<size_t>(size));
}

void Query::bind(int index, std::string_view text) {
  const char* data = text.data() == nullptr ? "" : text.data();  // nullptr would be NULL
  database_.check(
      sqlite3_bind_text64(statement_, index, data, text.size(), SQLITE_TRANSIENT, SQLITE_UTF8));
}

void Query::bind(int index, const Blob& blob) {
  const char* data = blob.bytes.data() == nullptr ? "" : blob.bytes.data();
  database_.check(sqlite3_bind_blob64(statement_, index, data, blob.bytes.size(), SQLITE_STATIC));
}

void Query::bind(int index, double value) {
  database_.check(sqlite3_bind_double(statement_, index, value));
}

void Query::bind_integer(int index, int64_t value) {
  database_.check(sqlite3_bind_int64(statement_, index, value));
}

Database::Database(const std::string& path, Access access) : path_(path) {
  constexpr int kBusyMilliseconds = 10000;
  const int mode = access == Access::kReadOnly ? SQLITE_OPEN_READONLY
                                               : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
  sqlite3* handle = nullptr;
  const int result = sqlite3_open_v2(path.c_str(), &handle, mode | SQLITE_OPEN_NOMUTEX, nullptr);
  handle_.reset(handle);  // to be closed even where it could not be opened
  if (handle == nullptr) throw Error(ErrorCode::kOutOfMemory, path, "no memory to open it");
  sqlite3_extended_result_codes(handle, 1);
  check(result);
  sqlite3_busy_timeout(handle, kBusyMilliseconds);
}

void Database::execute(const std::string& sql) {
  check(sqlite3_exec(handle_.get(), sql.c_str(), nullptr, nullptr, nullptr));
}

sqlite3_stmt* Database::prepared(const std::string& sql) {
  auto& statement = statements_[sql];
  if (!statement) {
    sqlite3_stmt* made = nullptr;
    check(sqlite3_prepare_v3(handle_.get(), sql.c_str(), static_cast<int>(sql.size()) + 1,
                             SQLITE_PREPARE_PERSISTENT, &made, nullptr));
    statement.reset(made);
  }
  HT_ASSERT(sqlite3_stmt_busy(statement.get()) == 0);
  return statement.get();
}

void Database::check(int result) const {
  if (result == SQLITE_OK) return;
  if ((result & 0xFF) == SQLITE_FULL) {
    throw Error(ErrorCode::kDiskFull, path_, "the disk is full, and nothing was stored");
  }
  const int reason = sqlite3_system_errno(handle_.get());
  const bool by_system = (result & 0xFF) == SQLITE_IOERR || (result & 0xFF) == SQLITE_CANTOPEN;
  if (by_system && reason != 0) {
    throw Error(write_error(reason), path_, "{}: {}", sqlite3_errmsg(handle_.get()),
                std::strerror(reason));
  }
  throw Error(ErrorCode::kIo, path_, "{}", sqlite3_errmsg(handle_.get()));
}

Transaction::Transaction(Database& database, Sync sync) : database_(database) {
  const bool synced = sync == Sync::kCommits;
  if (synced != database_.synced_) {
    database_.execute(synced ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL");
    database_.synced_ = synced;
  }
  database_.run("BEGIN IMMEDIATE");
}

Transaction::~Transaction() {
  // After some failures SQLite has rolled it back on its own.
  if (sqlite3_get_autocommit(database_.handle_.get()) == 0) {
    sqlite3_exec(database_.handle_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
  }
}

void Transaction::commit() { database_.run("COMMIT"); }

}  // namespace halftone::sqlite
