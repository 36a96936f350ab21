// Which job is next.
#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "halftone/server/postgres_store.h"

namespace halftone::postgres {
namespace {

// Two statements in one, since each has an index, which a time that stands still may use.
#define HT_PG_HOPELESS                                                       \
  "SELECT id FROM halftone_jobs WHERE state = 0 AND attempts >= 3 "          \
  "UNION ALL SELECT id FROM halftone_jobs WHERE state = 0 AND deadline > 0 " \
  "AND deadline <= extract(epoch from statement_timestamp())::float8"

// Jobs that wait are grouped by priority, kind, model and owner. Of each group only the oldest may
// be next, and an index goes from group to group: ten thousand jobs cost no more than ten.
constexpr const char* kNextJob = R"(
WITH RECURSIVE heads AS (
  (SELECT rank, kind, model, owner, id FROM halftone_jobs
   WHERE state = 0 AND attempts < 3 AND (deadline = 0 OR deadline > $4::float8)
   ORDER BY rank, kind, model, owner, id LIMIT 1)
  UNION ALL
  SELECT following.* FROM heads, LATERAL (
    SELECT other.rank, other.kind, other.model, other.owner, other.id FROM halftone_jobs AS other
    WHERE state = 0 AND attempts < 3 AND (deadline = 0 OR deadline > $4::float8)
      AND (other.rank, other.kind, other.model, other.owner)
          > (heads.rank, heads.kind, heads.model, heads.owner)
    ORDER BY other.rank, other.kind, other.model, other.owner, other.id LIMIT 1) AS following
), owners AS (
  SELECT owner, count(*) AS running FROM halftone_jobs WHERE state = 1 GROUP BY owner
)
SELECT {} FROM heads JOIN halftone_jobs AS job ON job.id = heads.id
LEFT JOIN owners ON owners.owner = job.owner
WHERE job.state = 0 AND heads.kind = ANY ($1::text[])
  AND (cardinality($2::text[]) = 0 OR heads.model = ANY ($2)) AND heads.model <> ALL ($3::text[])
ORDER BY heads.rank, coalesce(running, 0), heads.id LIMIT 1 {})";

}  // namespace

std::optional<StoredJob> PostgresStore::next(Connection& connection, const JobWish& wish,
                                             bool lock) {
  const double now = connection.run("SELECT " HT_PG_NOW).number(0, 0);
  const Result rows = connection.run(
      fmt::format(kNextJob, kJobColumns, lock ? "FOR UPDATE OF job SKIP LOCKED" : ""), wish.kinds,
      wish.models, wish.not_models, now);
  if (rows.rows() == 0) return std::nullopt;
  return job_of(rows, 0);
}

void PostgresStore::fail_hopeless(Connection& connection, Events& events) {
  const Result failed =
      connection.run("UPDATE halftone_jobs SET state = $1, finished = " HT_PG_NOW
                     ", error = CASE WHEN attempts >= 3 THEN $2 ELSE $3 END WHERE id IN ("
                     "SELECT id FROM halftone_jobs WHERE id = ANY (ARRAY(" HT_PG_HOPELESS
                     ")) AND state = 0 FOR UPDATE SKIP LOCKED) RETURNING id, kind",
                     static_cast<int>(JobState::kFailed), attempts_error(), deadline_error());
  for (int row = 0; row < failed.rows(); ++row) {
    events.push_back(state_of(failed.text(row, 0), failed.text(row, 1), JobState::kFailed));
  }
}

std::optional<StoredJob> PostgresStore::claim_next(Connection& connection, const JobWish& wish) {
  Transaction transaction(connection, kRepeatable);
  connection.run("SELECT FROM halftone_meta FOR UPDATE");
  Events events;
  fail_hopeless(connection, events);
  std::optional<StoredJob> job = next(connection, wish, true);
  if (!job && events.empty()) return std::nullopt;
  if (job) {
    connection.run("UPDATE halftone_jobs SET state = 1, started = " HT_PG_NOW
                   ", attempts = attempts + 1, server = $2, "
                   "lease = clock_timestamp() + make_interval(secs => $3) WHERE id = $1",
                   job->id, server_, lease_seconds_);
    events.push_back(state_of(job->id, job->kind, JobState::kRunning));
    job = get(connection, job->id);
  }
  commit(connection, transaction, events);
  return job;
}

std::optional<StoredJob> PostgresStore::claim(const JobWish& wish) {
  constexpr int kTries = 3;
  std::optional<StoredJob> job;
  {
    const Pool::Lease connection = pool_.take();
    for (int i = 0; i < kTries && !job; ++i) {
      // Servers that wait look often: without a lock.
      const bool hopeless = connection->run(HT_PG_HOPELESS " LIMIT 1").rows() > 0;
      if (!hopeless && !next(*connection, wish, false)) return std::nullopt;
      job = claim_next(*connection, wish);
      // What it saw is locked by someone who changes it, which takes milliseconds.
      if (!job) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  tell();
  return job;
}

std::optional<StoredJob> PostgresStore::peek(const JobWish& wish) {
  const Pool::Lease connection = pool_.take();
  return next(*connection, wish, false);
}

}  // namespace halftone::postgres
