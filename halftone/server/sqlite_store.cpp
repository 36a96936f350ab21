// What changes a job, but for claims.
#include "halftone/server/sqlite_store.h"

#include <algorithm>
#include <chrono>

#include "halftone/base/error.h"

namespace halftone {
namespace sqlite {

double store_seconds() {
  using Seconds = std::chrono::duration<double>;
  return Seconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

SqliteStore::SqliteStore(const std::string& path, StoreUse use)
    : lock_(use == StoreUse::kServer ? std::make_unique<FileLock>(path) : nullptr),
      database_(open_file(path)) {
  {
    Query last = database_.query("SELECT max(id) FROM jobs");
    if (last.next()) last_id_ = last.text(0);
  }
  if (use == StoreUse::kServer) give_back_running();
}

void SqliteStore::add_event(const std::string& job, const std::string& type,
                            const std::string& data) {
  database_.run("INSERT INTO events (job, type, data, time) VALUES (?1, ?2, ?3, ?4)", job, type,
                data, store_seconds());
}

void SqliteStore::give_back_running() {
  Transaction transaction(database_, kPromised);
  std::vector<StoredJob> running;
  {
    Query query = database_.query("SELECT id, kind, cancelling FROM jobs WHERE state = 1");
    while (query.next()) {
      StoredJob& job = running.emplace_back();
      job.id = query.text(0);
      job.kind = query.text(1);
      job.cancelling = query.integer(2) != 0;
    }
  }
  for (const StoredJob& job : running) {
    give_back(job.id, job.kind, job.cancelling);
    database_.run("UPDATE jobs SET resume = 1 WHERE id = ?1", job.id);
  }
  transaction.commit();
}

void SqliteStore::give_back(const std::string& id, const std::string& kind, bool cancelling) {
  if (given_back(cancelling) != JobState::kQueued) return end(id, kind, given_back(cancelling));
  database_.run("UPDATE jobs SET state = 0, started = 0, server = '' WHERE id = ?1", id);
  add_state_event(id, kind, JobState::kQueued);
}

void SqliteStore::end(const std::string& id, const std::string& kind, JobState state) {
  database_.run("UPDATE jobs SET state = ?2, finished = ?3, server = '' WHERE id = ?1", id,
                static_cast<int>(state), store_seconds());
  add_state_event(id, kind, state);
}

std::optional<StoredJob> SqliteStore::submit(const NewJob& job, int64_t most_queued) {
  std::optional<StoredJob> made;
  {
    const std::lock_guard lock(mutex_);
    Transaction transaction(database_, kPromised);
    {
      Query queued = database_.query(
          "SELECT count(*) FROM (SELECT 1 FROM jobs WHERE state = 0 LIMIT ?1)", most_queued);
      if (!queued.next() || queued.integer(0) >= most_queued) return std::nullopt;
    }
    const double now = store_seconds();
    const std::string id = next_job_id(now, last_id_);
    database_.run(
        "INSERT INTO jobs (id, kind, model, owner, rank, state, created, deadline) "
        "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        id, job.kind, job.model, job.owner, -int64_t{job.priority},
        static_cast<int>(JobState::kQueued), now, job.deadline);
    database_.run("INSERT INTO requests (job, request) VALUES (?1, ?2)", id, job.request);
    add_state_event(id, job.kind, JobState::kQueued);
    made = get(id);
    transaction.commit();
    last_id_ = id;
  }
  tell();
  return made;
}

void SqliteStore::put_file(const std::string& job, const StoredFile& file) {
  database_.run(
      "INSERT INTO files (job, name, type, details, path, size, bytes) "
      "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (job, name) DO UPDATE SET "
      "type = excluded.type, details = excluded.details, path = excluded.path, "
      "size = excluded.size, bytes = excluded.bytes",
      job, file.name, file.type, file.details, file.path, size_of(file), Blob{file.bytes});
}

void SqliteStore::thin_events(const std::string& id, size_t told) {
  if (!told_.is_due(id, told)) return;
  {
    Query count = database_.query("SELECT count(*) FROM events WHERE job = ?1", id);
    if (!count.next() || count.integer(0) <= kMostEvents) return;
  }
  database_.run(
      fmt::format(
          "WITH repeated AS (SELECT sequence, type, time, row_number() OVER "
          "  (PARTITION BY type ORDER BY sequence DESC) AS age FROM events"
          "  WHERE job = ?1 AND type IN ({})),"
          " span AS (SELECT min(time) AS begin, max(max(time) - min(time), 1e-6) / ?2 AS length"
          "  FROM repeated) "
          "DELETE FROM events WHERE sequence IN (SELECT sequence FROM (SELECT sequence, age, "
          "  row_number() OVER (PARTITION BY type, CAST((time - begin) / length AS INTEGER)"
          "   ORDER BY sequence) AS nth FROM repeated, span) WHERE age > ?3 AND nth > 1)",
          kRepeatedEvents),
      id, kEventSpans, kRecentEvents);
}

bool SqliteStore::apply_one(const JobChange& change) {
  const std::string& id = change.job;
  std::string kind;
  bool cancelling = false;
  {
    Query held = database_.query(
        "SELECT kind, cancelling FROM jobs WHERE id = ?1 AND state = 1 AND server = ?2", id,
        server_);
    if (!held.next()) return false;
    kind = held.text(0);
    cancelling = held.integer(1) != 0;
  }
  if (change.progress) {
    database_.run("UPDATE jobs SET progress = ?2 WHERE id = ?1", id, *change.progress);
  }
  if (change.resume) {
    database_.run("UPDATE jobs SET resume = ?2 WHERE id = ?1", id, *change.resume);
  }
  for (const StoredFile& file : change.files) put_file(id, file);
  for (const auto& [type, data] : change.events) add_event(id, type, data);
  thin_events(id, change.events.size());
  if (!change.state) return true;
  told_.forget(id);
  if (!change.summary.empty()) {
    database_.run("UPDATE jobs SET summary = ?2 WHERE id = ?1", id, change.summary);
  }
  if (!change.error.empty()) {
    database_.run("UPDATE jobs SET error = ?2 WHERE id = ?1", id, change.error);
  }
  if (*change.state == JobState::kQueued) {
    database_.run("UPDATE jobs SET attempts = attempts - 1 WHERE id = ?1", id);
    give_back(id, kind, cancelling);
  } else {
    end(id, kind, *change.state);
  }
  return true;
}

std::vector<std::string> SqliteStore::apply(std::span<const JobChange> changes) {
  bool promised = false;
  for (const JobChange& change : changes) {
    check_change(change);
    promised = promised || change.state || !change.files.empty();
  }
  std::vector<std::string> refused;
  if (changes.empty()) return refused;
  {
    const std::lock_guard lock(mutex_);
    Transaction transaction(database_, promised ? kPromised : kRepeatable);
    for (const JobChange& change : changes) {
      if (!apply_one(change) &&
          std::find(refused.begin(), refused.end(), change.job) == refused.end())
        refused.push_back(change.job);
    }
    transaction.commit();
  }
  tell();
  return refused;
}

std::optional<StoredJob> SqliteStore::cancel(const std::string& id) {
  std::optional<StoredJob> job;
  {
    const std::lock_guard lock(mutex_);
    Transaction transaction(database_, kPromised);
    job = get(id);
    if (!job || has_ended(job->state)) return job;
    database_.run("UPDATE jobs SET cancelling = 1 WHERE id = ?1", id);
    if (job->state == JobState::kQueued) end(id, job->kind, JobState::kCancelled);
    job = get(id);
    transaction.commit();
  }
  tell();
  return job;
}

bool SqliteStore::resume(const std::string& id) {
  {
    const std::lock_guard lock(mutex_);
    Transaction transaction(database_, kPromised);
    const std::optional<StoredJob> job = get(id);
    if (!job || !has_ended(job->state) || !job->resume) return false;
    // A deadline that has passed would fail it again at once.
    database_.run(
        "UPDATE jobs SET state = 0, attempts = 0, cancelling = 0, started = 0, finished = 0, "
        "summary = '', error = '', deadline = CASE WHEN deadline > ?2 THEN deadline ELSE 0 END "
        "WHERE id = ?1",
        id, store_seconds());
    add_state_event(id, job->kind, JobState::kQueued);
    transaction.commit();
  }
  tell();
  return true;
}

bool SqliteStore::remove(const std::string& id) {
  {
    const std::lock_guard lock(mutex_);
    Transaction transaction(database_, kPromised);
    if (database_.run("DELETE FROM jobs WHERE id = ?1 AND state >= 2", id) == 0) return false;
    transaction.commit();
  }
  tell();
  return true;
}

void SqliteStore::add_key(const ApiKey& key) {
  const std::lock_guard lock(mutex_);
  Transaction transaction(database_, kPromised);
  const double created = key.created > 0 ? key.created : store_seconds();
  if (database_.run("INSERT INTO keys (name, hash, created) VALUES (?1, ?2, ?3) "
                    "ON CONFLICT DO NOTHING",
                    key.name, key.hash, created) == 0) {
    throw Error(ErrorCode::kInvalidInput, key.name, "there is a key of this name already");
  }
  transaction.commit();
}

bool SqliteStore::remove_key(const std::string& name) {
  const std::lock_guard lock(mutex_);
  Transaction transaction(database_, kPromised);
  const bool found = database_.run("DELETE FROM keys WHERE name = ?1", name) > 0;
  transaction.commit();
  return found;
}

}  // namespace sqlite

std::unique_ptr<Store> open_sqlite_store(const std::string& path, StoreUse use) {
  return std::make_unique<sqlite::SqliteStore>(path, use);
}

}  // namespace halftone
