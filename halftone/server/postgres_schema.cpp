#include "halftone/server/postgres_schema.h"

#include "halftone/base/error.h"
#include "halftone/server/store.h"

namespace halftone::postgres {
namespace {

constexpr int64_t kPostgresVersion = 1;
constexpr int64_t kSchemaLock = 0x48544A53;  // any number that others do not lock

// States are those of JobState; `rank` is the priority negated, so that one index has the order of
// claims. What is compared is compared byte by byte, whatever the language of the database is. The
// one row of halftone_meta has the last sequence: who tells an event holds it until the end of the
// transaction, so that events are seen in the order of their numbers. Its page has room for new
// versions of the row, which then need no cleaning up.
constexpr const char* kPostgresTables = R"(
CREATE TABLE halftone_meta (
  single boolean PRIMARY KEY DEFAULT true CHECK (single),
  version int NOT NULL, sequence bigint NOT NULL
) WITH (fillfactor = 10);

CREATE TABLE halftone_jobs (
  id text COLLATE "C" PRIMARY KEY,
  kind text COLLATE "C" NOT NULL, model text COLLATE "C" NOT NULL, owner text COLLATE "C" NOT NULL,
  rank bigint NOT NULL, state int NOT NULL CHECK (state BETWEEN 0 AND 4),
  request text NOT NULL, progress text NOT NULL DEFAULT '', summary text NOT NULL DEFAULT '',
  error text NOT NULL DEFAULT '',
  created float8 NOT NULL, started float8 NOT NULL DEFAULT 0, finished float8 NOT NULL DEFAULT 0,
  deadline float8 NOT NULL, attempts int NOT NULL DEFAULT 0,
  cancelling boolean NOT NULL DEFAULT false, resume boolean NOT NULL DEFAULT false,
  server text NOT NULL DEFAULT '', lease timestamptz
);
CREATE INDEX halftone_jobs_by_turn ON halftone_jobs (rank, kind, model, owner, id) WHERE state = 0;
CREATE INDEX halftone_jobs_by_owner ON halftone_jobs (owner, rank, id) WHERE state = 0;
CREATE INDEX halftone_jobs_by_deadline ON halftone_jobs (deadline) WHERE state = 0 AND deadline > 0;
CREATE INDEX halftone_jobs_spent ON halftone_jobs (id) WHERE state = 0 AND attempts >= 3;
CREATE INDEX halftone_jobs_running ON halftone_jobs (owner, id) WHERE state = 1;
CREATE INDEX halftone_jobs_by_kind ON halftone_jobs (kind, id);
CREATE INDEX halftone_jobs_by_state ON halftone_jobs (state, id);

CREATE TABLE halftone_events (
  sequence bigint PRIMARY KEY,
  job text COLLATE "C" NOT NULL REFERENCES halftone_jobs ON DELETE CASCADE,
  type text NOT NULL, data text NOT NULL, time float8 NOT NULL
);
CREATE INDEX halftone_events_of_jobs ON halftone_events (job, sequence);

CREATE TABLE halftone_files (
  number bigint GENERATED ALWAYS AS IDENTITY,
  job text COLLATE "C" NOT NULL REFERENCES halftone_jobs ON DELETE CASCADE,
  name text COLLATE "C" NOT NULL, type text NOT NULL, details text NOT NULL, path text NOT NULL,
  size bigint NOT NULL, bytes bytea NOT NULL,
  PRIMARY KEY (job, name)
);
-- Pictures are compressed already.
ALTER TABLE halftone_files ALTER COLUMN bytes SET STORAGE EXTERNAL;

CREATE TABLE halftone_keys (
  name text COLLATE "C" PRIMARY KEY, hash text NOT NULL, created float8 NOT NULL
);
)";
static_assert(Store::kMostAttempts == 3, "the index halftone_jobs_spent has this number");

bool has_tables(Connection& connection) {
  // Not to_regclass, which may answer from what was known before the lock was taken.
  return connection
             .run(
                 "SELECT FROM pg_class WHERE relname = 'halftone_meta' "
                 "AND pg_table_is_visible(oid)")
             .rows() > 0;
}

}  // namespace

void make_tables(Connection& connection) {
  const std::string encoding = connection.run("SHOW server_encoding").text(0, 0);
  if (encoding != "UTF8") {
    throw Error(ErrorCode::kInvalidInput, "postgresql",
                "the encoding of the database is {}; it must be UTF8", encoding);
  }
  if (!has_tables(connection)) {
    Transaction transaction(connection, Transaction::Sync::kCommits);
    connection.run("SELECT pg_advisory_xact_lock($1)", kSchemaLock);
    if (!has_tables(connection)) {
      connection.run_script(kPostgresTables);
      connection.run("INSERT INTO halftone_meta (version, sequence) VALUES ($1::int, 0)",
                     kPostgresVersion);
    }
    transaction.commit();
  }
  const int64_t version = connection.run("SELECT version FROM halftone_meta").integer(0, 0);
  if (version > kPostgresVersion) {
    throw Error(ErrorCode::kInvalidInput, "postgresql",
                "the tables were made by a newer Halftone: their version is {}, and this program "
                "knows versions up to {}",
                version, kPostgresVersion);
  }
}

}  // namespace halftone::postgres
