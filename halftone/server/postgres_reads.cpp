// What only reads.
#include <fmt/format.h>

#include <algorithm>

#include "halftone/server/postgres_store.h"

namespace halftone::postgres {
namespace {

std::vector<StoredJob> jobs_of(const Result& rows) {
  std::vector<StoredJob> jobs;
  for (int row = 0; row < rows.rows(); ++row) jobs.push_back(job_of(rows, row));
  return jobs;
}

// Of a table read in binary: all of its columns are text or bytea.
StoredFile file_of(const Result& rows, int row) {
  return {rows.text(row, 0), rows.text(row, 1),   rows.text(row, 2), "",
          rows.text(row, 3), rows.integer(row, 4)};
}

}  // namespace

StoredJob job_of(const Result& rows, int row) {
  StoredJob job;
  job.id = rows.text(row, 0);
  job.kind = rows.text(row, 1);
  job.model = rows.text(row, 2);
  job.owner = rows.text(row, 3);
  job.priority = static_cast<int>(-rows.integer(row, 4));
  job.state = static_cast<JobState>(rows.integer(row, 5));
  job.request = rows.text(row, 6);
  job.progress = rows.text(row, 7);
  job.summary = rows.text(row, 8);
  job.error = rows.text(row, 9);
  job.created = rows.number(row, 10);
  job.started = rows.number(row, 11);
  job.finished = rows.number(row, 12);
  job.deadline = rows.number(row, 13);
  job.attempts = static_cast<int>(rows.integer(row, 14));
  job.cancelling = rows.truth(row, 15);
  job.resume = rows.truth(row, 16);
  job.server = rows.text(row, 17);
  return job;
}

std::optional<StoredJob> PostgresStore::get(Connection& connection, const std::string& id,
                                            bool lock) {
  const Result rows =
      connection.run(fmt::format("SELECT {} FROM halftone_jobs AS job WHERE id = $1{}", kJobColumns,
                                 lock ? " FOR UPDATE" : ""),
                     id);
  if (rows.rows() == 0) return std::nullopt;
  return job_of(rows, 0);
}

std::optional<StoredJob> PostgresStore::find(const std::string& id) {
  const Pool::Lease connection = pool_.take();
  return get(*connection, id);
}

std::vector<StoredJob> PostgresStore::list(const JobFilter& filter) {
  const Pool::Lease connection = pool_.take();
  return jobs_of(connection->run(
      fmt::format("SELECT {} FROM halftone_jobs AS job WHERE ($1::text = '' OR kind = $1) "
                  "AND ($2::int = -1 OR state = $2) AND ($3::text = '' OR id < $3 COLLATE \"C\") "
                  "ORDER BY id DESC LIMIT $4::bigint",
                  kJobColumns),
      filter.kind, filter.state ? static_cast<int>(*filter.state) : -1, filter.before,
      std::max(filter.limit, 0)));
}

// Each claim makes its owner run one more. So an owner's jobs take turns number r, r + 1, ...,
// where r of them are running, and claims go by priority, turn and age.
int64_t PostgresStore::place(const StoredJob& job) {
  const Pool::Lease connection = pool_.take();
  const int64_t sequence = connection->run("SELECT sequence FROM halftone_meta").integer(0, 0);
  return places_.of(job.id, sequence, [&] {
    const Result rows = connection->run(
        "WITH owners AS ("
        "  SELECT owner, count(*) AS running FROM halftone_jobs WHERE state = 1 GROUP BY owner) "
        "SELECT id FROM (SELECT rank, id, coalesce(running, 0) + row_number() OVER"
        "  (PARTITION BY job.owner ORDER BY rank, id) AS turn FROM halftone_jobs AS job"
        "  LEFT JOIN owners ON owners.owner = job.owner WHERE state = 0) AS turns "
        "ORDER BY rank, turn, id");
    std::vector<std::string> ids;
    for (int row = 0; row < rows.rows(); ++row) ids.push_back(rows.text(row, 0));
    return ids;
  });
}

Store::Counts PostgresStore::counts() {
  const Pool::Lease connection = pool_.take();
  const Result counts = connection->run(
      "SELECT (SELECT count(*) FROM halftone_jobs WHERE state = 0), "
      "(SELECT count(*) FROM halftone_jobs WHERE state = 1)");
  return {counts.integer(0, 0), counts.integer(0, 1)};
}

std::vector<std::string> PostgresStore::cancelling() {
  const Pool::Lease connection = pool_.take();
  const Result rows = connection->run(
      "SELECT id FROM halftone_jobs WHERE state = 1 AND cancelling AND server = $1 ORDER BY id",
      server_);
  std::vector<std::string> ids;
  for (int row = 0; row < rows.rows(); ++row) ids.push_back(rows.text(row, 0));
  return ids;
}

std::vector<StoredEvent> PostgresStore::events(int64_t after, const std::string& job, int limit) {
  const Pool::Lease connection = pool_.take();
  const Result rows = connection->run(
      "SELECT sequence, job, type, data, time FROM halftone_events "
      "WHERE sequence > $1 AND ($2::text = '' OR job = $2) ORDER BY sequence LIMIT $3::bigint",
      after, job, std::max(limit, 0));
  std::vector<StoredEvent> events;
  for (int row = 0; row < rows.rows(); ++row) {
    events.push_back({rows.integer(row, 0), rows.text(row, 1), rows.text(row, 2), rows.text(row, 3),
                      rows.number(row, 4)});
  }
  return events;
}

int64_t PostgresStore::last_sequence() {
  const Pool::Lease connection = pool_.take();
  return connection->run("SELECT sequence FROM halftone_meta").integer(0, 0);
}

std::vector<StoredFile> PostgresStore::files(const std::string& job) {
  const Pool::Lease connection = pool_.take();
  const Result rows = connection->run(
      "SELECT name, type, details, path, size FROM halftone_files WHERE job = $1 ORDER BY number",
      job);
  std::vector<StoredFile> files;
  for (int row = 0; row < rows.rows(); ++row) files.push_back(file_of(rows, row));
  return files;
}

std::optional<StoredFile> PostgresStore::file(const std::string& job, const std::string& name) {
  const Pool::Lease connection = pool_.take();
  const Result rows = connection->run_binary(
      "SELECT name, type, details, path, size::text, bytes FROM halftone_files "
      "WHERE job = $1 AND name = $2",
      job, name);
  if (rows.rows() == 0) return std::nullopt;
  StoredFile file = file_of(rows, 0);
  file.bytes = rows.text(0, 5);
  return file;
}

std::vector<ApiKey> PostgresStore::keys() {
  const Pool::Lease connection = pool_.take();
  const Result rows =
      connection->run("SELECT name, hash, created FROM halftone_keys ORDER BY created, name");
  std::vector<ApiKey> keys;
  for (int row = 0; row < rows.rows(); ++row) {
    keys.push_back({rows.text(row, 0), rows.text(row, 1), rows.number(row, 2)});
  }
  return keys;
}

}  // namespace halftone::postgres
