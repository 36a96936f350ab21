#include "halftone/server/sqlite_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "halftone/base/error.h"
#include "halftone/io/output.h"
#include "halftone/server/store.h"

namespace halftone::sqlite {
namespace {

constexpr int64_t kSqliteVersion = 1;
constexpr int64_t kSqliteApplication = 0x48544A53;  // "HTJS"

// States are those of JobState; `rank` is the priority negated, so that one index has the order of
// claims. Requests have a table of their own because a row is written again as a whole with every
// change of it. `bytes` comes last, so that the columns before it are read without it.
constexpr const char* kSqliteTables = R"(
CREATE TABLE jobs (
  id TEXT PRIMARY KEY, kind TEXT NOT NULL, model TEXT NOT NULL, owner TEXT NOT NULL,
  rank INTEGER NOT NULL, state INTEGER NOT NULL CHECK (state BETWEEN 0 AND 4),
  progress TEXT NOT NULL DEFAULT '', summary TEXT NOT NULL DEFAULT '',
  error TEXT NOT NULL DEFAULT '',
  created REAL NOT NULL, started REAL NOT NULL DEFAULT 0, finished REAL NOT NULL DEFAULT 0,
  deadline REAL NOT NULL, attempts INTEGER NOT NULL DEFAULT 0,
  cancelling INTEGER NOT NULL DEFAULT 0, resume INTEGER NOT NULL DEFAULT 0,
  server TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX jobs_by_turn ON jobs (rank, kind, model, owner, id) WHERE state = 0;
CREATE INDEX jobs_by_owner ON jobs (owner, rank, id) WHERE state = 0;
CREATE INDEX jobs_by_deadline ON jobs (deadline) WHERE state = 0 AND deadline > 0;
CREATE INDEX jobs_spent ON jobs (id) WHERE state = 0 AND attempts >= 3;
CREATE INDEX jobs_running ON jobs (owner, id) WHERE state = 1;
CREATE INDEX jobs_by_kind ON jobs (kind, id);
CREATE INDEX jobs_by_state ON jobs (state, id);

CREATE TABLE requests (
  job TEXT PRIMARY KEY REFERENCES jobs ON DELETE CASCADE,
  request TEXT NOT NULL
) STRICT;

CREATE TABLE events (
  sequence INTEGER PRIMARY KEY AUTOINCREMENT,
  job TEXT NOT NULL REFERENCES jobs ON DELETE CASCADE,
  type TEXT NOT NULL, data TEXT NOT NULL, time REAL NOT NULL
) STRICT;
CREATE INDEX events_of_jobs ON events (job, sequence);

CREATE TABLE files (
  number INTEGER PRIMARY KEY,
  job TEXT NOT NULL REFERENCES jobs ON DELETE CASCADE,
  name TEXT NOT NULL, type TEXT NOT NULL, details TEXT NOT NULL, path TEXT NOT NULL,
  size INTEGER NOT NULL, bytes BLOB NOT NULL,
  UNIQUE (job, name)
) STRICT;

CREATE TABLE keys (
  name TEXT PRIMARY KEY, hash TEXT NOT NULL, created REAL NOT NULL
) STRICT;
)";
static_assert(Store::kMostAttempts == 3, "the index jobs_spent has this number");

int64_t read_integer(Database& database, const char* sql) {
  Query query = database.query(sql);
  return query.next() ? query.integer(0) : 0;
}

void make_tables(Database& database) {
  Transaction transaction(database, Transaction::Sync::kCommits);
  const int64_t version = read_integer(database, "PRAGMA user_version");
  const int64_t application = read_integer(database, "PRAGMA application_id");
  const bool empty = read_integer(database, "SELECT count(*) FROM sqlite_schema") == 0;
  if (empty && version == 0) {
    database.execute(kSqliteTables);
    database.execute(fmt::format("PRAGMA user_version = {}; PRAGMA application_id = {}",
                                 kSqliteVersion, kSqliteApplication));
  } else if (application != kSqliteApplication || version < 1) {
    throw Error(ErrorCode::kInvalidInput, database.path(), "is a database of something else");
  } else if (version > kSqliteVersion) {
    throw Error(ErrorCode::kInvalidInput, database.path(),
                "was written by a newer Halftone: its version is {}, and this program knows "
                "versions up to {}",
                version, kSqliteVersion);
  }
  transaction.commit();
}

}  // namespace

FileLock::FileLock(const std::string& path) {
  const std::string name = path + ".lock";
  fd_ = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd_ < 0) throw Error(ErrorCode::kIo, name, "{}", std::strerror(errno));
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    std::array<char, 32> holder{};
    const ssize_t n = ::pread(fd_, holder.data(), holder.size() - 1, 0);
    ::close(fd_);
    if (reason != EWOULDBLOCK) throw Error(ErrorCode::kIo, name, "{}", std::strerror(reason));
    throw Error(ErrorCode::kIo, path,
                "is in use by another server{}; one at a time can, or several with PostgreSQL",
                n > 0 ? fmt::format(", process {}", holder.data()) : "");
  }
  // Only for the message above: if it cannot be written, the lock holds all the same.
  const std::string self = std::to_string(::getpid());
  [[maybe_unused]] const bool written =
      ::ftruncate(fd_, 0) == 0 && ::pwrite(fd_, self.data(), self.size(), 0) > 0;
}

FileLock::~FileLock() { ::close(fd_); }

Database open_file(const std::string& path) {
  // SQLite gives what it makes beside the file the same permissions.
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) throw Error(ErrorCode::kIo, path, "cannot open it: {}", std::strerror(errno));
  ::close(fd);
  Database database(path, Database::Access::kReadWrite);
  make_tables(database);
  // A long read elsewhere may let the log grow: afterwards it is cut to this many bytes again. The
  // system caches the file: SQLite's own cache, in KiB, only fills up over the first thousand jobs.
  database.execute(
      "PRAGMA journal_mode = WAL; PRAGMA journal_size_limit = 67108864; PRAGMA cache_size = -512;"
      "PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF");
  return database;
}

void copy_file(const std::string& from, const std::string& to) {
  // VACUUM INTO reads one snapshot, beside which the store's own connection goes on to write.
  Temporary copy(to, Temporary::Kind::kFile);
  Database database(from, Database::Access::kReadOnly);
  database.run("VACUUM INTO ?1", copy.path().string());
  if (::fsync(copy.fd()) != 0) {
    throw Error(ErrorCode::kIo, to, "cannot sync: {}", std::strerror(errno));
  }
  copy.take_place();
}

}  // namespace halftone::sqlite
