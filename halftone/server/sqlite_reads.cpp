// What only reads.
#include <algorithm>

#include "halftone/server/sqlite_store.h"

namespace halftone::sqlite {
namespace {

constexpr const char* kSelectJob =
    "SELECT id, kind, model, owner, rank, state, request, progress, summary, error, created, "
    "started, finished, deadline, attempts, cancelling, resume, server "
    "FROM jobs JOIN requests ON job = id ";

StoredJob read_job(const Query& row) {
  StoredJob job;
  job.id = row.text(0);
  job.kind = row.text(1);
  job.model = row.text(2);
  job.owner = row.text(3);
  job.priority = static_cast<int>(-row.integer(4));
  job.state = static_cast<JobState>(row.integer(5));
  job.request = row.text(6);
  job.progress = row.text(7);
  job.summary = row.text(8);
  job.error = row.text(9);
  job.created = row.number(10);
  job.started = row.number(11);
  job.finished = row.number(12);
  job.deadline = row.number(13);
  job.attempts = static_cast<int>(row.integer(14));
  job.cancelling = row.integer(15) != 0;
  job.resume = row.integer(16) != 0;
  job.server = row.text(17);
  return job;
}

StoredFile read_file_row(const Query& row) {
  return {row.text(0), row.text(1), row.text(2), "", row.text(3), row.integer(4)};
}

}  // namespace

std::optional<StoredJob> SqliteStore::get(const std::string& id) {
  Query query = database_.query(std::string(kSelectJob) + "WHERE id = ?1", id);
  if (!query.next()) return std::nullopt;
  return read_job(query);
}

std::optional<StoredJob> SqliteStore::find(const std::string& id) {
  const std::lock_guard lock(mutex_);
  return get(id);
}

std::vector<StoredJob> SqliteStore::list(const JobFilter& filter) {
  // A statement of its own for each choice of conditions, so that each may use its index. All name
  // ?1 to ?4.
  std::string sql = kSelectJob;
  sql += filter.before.empty() ? "WHERE ?3 = ''" : "WHERE id < ?3";
  sql += filter.kind.empty() ? " AND ?1 = ''" : " AND kind = ?1";
  sql += filter.state ? " AND state = ?2" : " AND ?2 = -1";
  sql += " ORDER BY id DESC LIMIT ?4";
  const std::lock_guard lock(mutex_);
  Query query =
      database_.query(sql, filter.kind, filter.state ? static_cast<int>(*filter.state) : -1,
                      filter.before, std::max(filter.limit, 0));
  std::vector<StoredJob> jobs;
  while (query.next()) jobs.push_back(read_job(query));
  return jobs;
}

Store::Counts SqliteStore::counts() {
  const std::lock_guard lock(mutex_);
  Query query = database_.query(
      "SELECT (SELECT count(*) FROM jobs WHERE state = 0), "
      "(SELECT count(*) FROM jobs WHERE state = 1)");
  query.next();
  return {query.integer(0), query.integer(1)};
}

// Each claim makes its owner run one more. So an owner's jobs take turns number r, r + 1, ...,
// where r of them are running, and claims go by priority, turn and age.
int64_t SqliteStore::place(const StoredJob& job) {
  const int64_t sequence = last_sequence();
  return places_.of(job.id, sequence, [&] {
    const std::lock_guard lock(mutex_);
    Query query = database_.query(
        "WITH owners AS (SELECT owner, count(*) AS running FROM jobs WHERE state = 1 GROUP BY "
        "owner)"
        " SELECT id FROM (SELECT rank, id, coalesce(running, 0) + row_number() OVER"
        "  (PARTITION BY jobs.owner ORDER BY rank, id) AS turn"
        "  FROM jobs LEFT JOIN owners ON owners.owner = jobs.owner WHERE state = 0) "
        "ORDER BY rank, turn, id");
    std::vector<std::string> ids;
    while (query.next()) ids.push_back(query.text(0));
    return ids;
  });
}

std::vector<std::string> SqliteStore::cancelling() {
  const std::lock_guard lock(mutex_);
  Query query =
      database_.query("SELECT id FROM jobs WHERE state = 1 AND cancelling = 1 ORDER BY id");
  std::vector<std::string> ids;
  while (query.next()) ids.push_back(query.text(0));
  return ids;
}

std::vector<StoredEvent> SqliteStore::events(int64_t after, const std::string& job, int limit) {
  std::string sql = "SELECT sequence, job, type, data, time FROM events WHERE sequence > ?1";
  sql += job.empty() ? " AND ?2 = ''" : " AND job = ?2";
  sql += " ORDER BY sequence LIMIT ?3";
  const std::lock_guard lock(mutex_);
  Query query = database_.query(sql, after, job, std::max(limit, 0));
  std::vector<StoredEvent> events;
  while (query.next()) {
    events.push_back(
        {query.integer(0), query.text(1), query.text(2), query.text(3), query.number(4)});
  }
  return events;
}

int64_t SqliteStore::last_sequence() {
  const std::lock_guard lock(mutex_);
  // Not the greatest of the events, which may have been removed.
  Query query = database_.query("SELECT seq FROM sqlite_sequence WHERE name = 'events'");
  return query.next() ? query.integer(0) : 0;
}

std::vector<StoredFile> SqliteStore::files(const std::string& job) {
  const std::lock_guard lock(mutex_);
  Query query = database_.query(
      "SELECT name, type, details, path, size FROM files WHERE job = ?1 ORDER BY number", job);
  std::vector<StoredFile> files;
  while (query.next()) files.push_back(read_file_row(query));
  return files;
}

std::optional<StoredFile> SqliteStore::file(const std::string& job, const std::string& name) {
  const std::lock_guard lock(mutex_);
  Query query = database_.query(
      "SELECT name, type, details, path, size, bytes FROM files WHERE job = ?1 AND name = ?2", job,
      name);
  if (!query.next()) return std::nullopt;
  StoredFile file = read_file_row(query);
  file.bytes = query.text(5);
  return file;
}

std::vector<ApiKey> SqliteStore::keys() {
  const std::lock_guard lock(mutex_);
  Query query = database_.query("SELECT name, hash, created FROM keys ORDER BY created, name");
  std::vector<ApiKey> keys;
  while (query.next()) keys.push_back({query.text(0), query.text(1), query.number(2)});
  return keys;
}

}  // namespace halftone::sqlite
