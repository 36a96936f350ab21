// What changes a job, but for claims.
#include "halftone/server/postgres_store.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/server/postgres_schema.h"

namespace halftone {
namespace postgres {
namespace {

constexpr const char* kChannel = "halftone_changed";

}  // namespace

PostgresStore::PostgresStore(const std::string& url, double lease_seconds)
    : lease_seconds_(lease_seconds), pool_(url) {
  {
    const Pool::Lease connection = pool_.take();
    make_tables(*connection);
  }
  listener_.emplace(url, kChannel, [this] { tell(); });
}

void PostgresStore::commit(Connection& connection, Transaction& transaction, const Events& events) {
  for (const StoredEvent& event : events) {
    connection.run(
        "WITH counter AS (UPDATE halftone_meta SET sequence = sequence + 1 RETURNING sequence) "
        "INSERT INTO halftone_events (sequence, job, type, data, time) "
        "SELECT sequence, $1, $2, $3, " HT_PG_NOW " FROM counter",
        event.job, event.type, event.data);
  }
  connection.run("SELECT pg_notify($1, '')", kChannel);
  transaction.commit();
}

void PostgresStore::end(Connection& connection, const std::string& id, const std::string& kind,
                        JobState state, Events& events) {
  connection.run("UPDATE halftone_jobs SET state = $2, finished = " HT_PG_NOW
                 ", server = '', lease = NULL WHERE id = $1",
                 id, static_cast<int>(state));
  events.push_back(state_of(id, kind, state));
}

void PostgresStore::give_back(Connection& connection, const std::string& id, const Held& job,
                              Events& events) {
  const JobState state = given_back(job.cancelling);
  if (state != JobState::kQueued) return end(connection, id, job.kind, state, events);
  connection.run(
      "UPDATE halftone_jobs SET state = 0, started = 0, server = '', lease = NULL WHERE id = $1",
      id);
  events.push_back(state_of(id, job.kind, state));
}

std::optional<StoredJob> PostgresStore::submit(const NewJob& job, int64_t most_queued) {
  std::optional<StoredJob> made;
  {
    const Pool::Lease connection = pool_.take();
    Transaction transaction(*connection, kPromised);
    // Holding the counter, ids have the order of commits.
    connection->run("SELECT FROM halftone_meta FOR UPDATE");
    const Result before = connection->run(
        "SELECT (SELECT count(*) FROM (SELECT FROM halftone_jobs WHERE state = 0 "
        "LIMIT greatest($1::bigint, 0)) AS queued), " HT_PG_NOW
        ", (SELECT max(id) FROM halftone_jobs)",
        most_queued);
    if (before.integer(0, 0) >= most_queued) return std::nullopt;
    const std::string id = next_job_id(before.number(0, 1), before.text(0, 2));
    connection->run(
        "INSERT INTO halftone_jobs (id, kind, model, owner, rank, state, request, created, "
        "deadline)"
        " VALUES ($1, $2, $3, $4, $5, 0, $6, $7, $8)",
        id, job.kind, job.model, job.owner, -int64_t{job.priority}, job.request,
        before.number(0, 1), job.deadline);
    made = get(*connection, id);
    commit(*connection, transaction, {state_of(id, job.kind, JobState::kQueued)});
  }
  tell();
  return made;
}

// Those that the change itself tells come later, and are looked at another time.
void PostgresStore::thin_events(Connection& connection, const JobChange& change) {
  if (!told_.is_due(change.job, change.events.size())) return;
  const Result count =
      connection.run("SELECT count(*) FROM halftone_events WHERE job = $1", change.job);
  if (count.integer(0, 0) <= kMostEvents) return;
  connection.run(
      fmt::format(
          "WITH repeated AS (SELECT sequence, type, time, row_number() OVER "
          "  (PARTITION BY type ORDER BY sequence DESC) AS age FROM halftone_events"
          "  WHERE job = $1 AND type IN ({})),"
          " span AS (SELECT min(time) AS begin,"
          "  greatest(max(time) - min(time), 1e-6) / $2::float8 AS length FROM repeated) "
          "DELETE FROM halftone_events WHERE sequence IN (SELECT sequence FROM (SELECT sequence,"
          "  age, row_number() OVER (PARTITION BY type, floor((time - begin) / length)"
          "   ORDER BY sequence) AS nth FROM repeated, span) AS old"
          " WHERE age > $3::bigint AND nth > 1)",
          kRepeatedEvents),
      change.job, kEventSpans, kRecentEvents);
}

void PostgresStore::apply_one(Connection& connection, const JobChange& change, HeldJobs& held,
                              Events& events) {
  const std::string& id = change.job;
  if (change.progress) {
    connection.run("UPDATE halftone_jobs SET progress = $2 WHERE id = $1", id, *change.progress);
  }
  if (change.resume) {
    connection.run("UPDATE halftone_jobs SET resume = $2 WHERE id = $1", id, *change.resume);
  }
  for (const StoredFile& file : change.files) {
    connection.run(
        "INSERT INTO halftone_files (job, name, type, details, path, size, bytes) "
        "VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (job, name) DO UPDATE SET "
        "type = excluded.type, details = excluded.details, path = excluded.path, "
        "size = excluded.size, bytes = excluded.bytes",
        id, file.name, file.type, file.details, file.path, size_of(file), Blob{file.bytes});
  }
  for (const auto& [type, data] : change.events) events.push_back({0, id, type, data, 0});
  thin_events(connection, change);
  if (!change.state) return;
  told_.forget(id);
  connection.run(
      "UPDATE halftone_jobs SET summary = CASE WHEN $2 = '' THEN summary ELSE $2 END, "
      "error = CASE WHEN $3 = '' THEN error ELSE $3 END, attempts = attempts - $4::int "
      "WHERE id = $1",
      id, change.summary, change.error, *change.state == JobState::kQueued ? 1 : 0);
  if (*change.state == JobState::kQueued) {
    give_back(connection, id, held.at(id), events);
  } else {
    end(connection, id, held.at(id).kind, *change.state, events);
  }
  held.erase(id);
}

std::vector<std::string> PostgresStore::apply(std::span<const JobChange> changes) {
  bool promised = false;
  std::vector<std::string> ids, refused;
  for (const JobChange& change : changes) {
    check_change(change);
    promised = promised || change.state || !change.files.empty();
    ids.push_back(change.job);
  }
  if (changes.empty()) return refused;
  {
    const Pool::Lease connection = pool_.take();
    Transaction transaction(*connection, promised ? kPromised : kRepeatable);
    const Result rows = connection->run(
        "SELECT id, kind, cancelling FROM halftone_jobs "
        "WHERE id = ANY ($1::text[]) AND server = $2 AND state = 1 ORDER BY id FOR UPDATE",
        ids, server_);
    HeldJobs held;
    for (int row = 0; row < rows.rows(); ++row) {
      held[rows.text(row, 0)] = {rows.text(row, 1), rows.truth(row, 2)};
    }
    Events events;
    for (const JobChange& change : changes) {
      if (held.contains(change.job)) {
        apply_one(*connection, change, held, events);
      } else if (std::find(refused.begin(), refused.end(), change.job) == refused.end()) {
        refused.push_back(change.job);
      }
    }
    commit(*connection, transaction, events);
  }
  tell();
  return refused;
}

void PostgresStore::take_over(Connection& connection) {
  Transaction transaction(connection, kPromised);
  const Result lost = connection.run(
      "SELECT id, kind, cancelling FROM halftone_jobs WHERE state = 1 "
      "AND lease < clock_timestamp() ORDER BY id FOR UPDATE SKIP LOCKED");
  Events events;
  for (int row = 0; row < lost.rows(); ++row) {
    give_back(connection, lost.text(row, 0), {lost.text(row, 1), lost.truth(row, 2)}, events);
    connection.run("UPDATE halftone_jobs SET resume = true WHERE id = $1", lost.text(row, 0));
  }
  commit(connection, transaction, events);
}

void PostgresStore::renew() {
  {
    const Pool::Lease connection = pool_.take();
    // Also a lease that has run out, if nobody has taken the job yet.
    connection->run(
        "UPDATE halftone_jobs SET lease = clock_timestamp() + make_interval(secs => $2) WHERE id "
        "IN "
        "(SELECT id FROM halftone_jobs WHERE state = 1 AND server = $1 ORDER BY id FOR UPDATE)",
        server_, lease_seconds_);
    const Result lost = connection->run(
        "SELECT FROM halftone_jobs WHERE state = 1 AND lease < clock_timestamp() LIMIT 1");
    if (lost.rows() == 0) return;
    take_over(*connection);
  }
  tell();
}

std::optional<StoredJob> PostgresStore::cancel(const std::string& id) {
  std::optional<StoredJob> job;
  {
    const Pool::Lease connection = pool_.take();
    Transaction transaction(*connection, kPromised);
    job = get(*connection, id, true);
    if (!job || has_ended(job->state)) return job;
    Events events;
    connection->run("UPDATE halftone_jobs SET cancelling = true WHERE id = $1", id);
    if (job->state == JobState::kQueued) {
      end(*connection, id, job->kind, JobState::kCancelled, events);
    }
    job = get(*connection, id);
    commit(*connection, transaction, events);
  }
  tell();
  return job;
}

bool PostgresStore::resume(const std::string& id) {
  {
    const Pool::Lease connection = pool_.take();
    Transaction transaction(*connection, kPromised);
    const std::optional<StoredJob> job = get(*connection, id, true);
    if (!job || !has_ended(job->state) || !job->resume) return false;
    // A deadline that has passed would fail it again at once.
    connection->run(
        "UPDATE halftone_jobs SET state = 0, attempts = 0, cancelling = false, started = 0, "
        "finished = 0, summary = '', error = '', "
        "deadline = CASE WHEN deadline > " HT_PG_NOW " THEN deadline ELSE 0 END WHERE id = $1",
        id);
    commit(*connection, transaction, {state_of(id, job->kind, JobState::kQueued)});
  }
  tell();
  return true;
}

bool PostgresStore::remove(const std::string& id) {
  {
    const Pool::Lease connection = pool_.take();
    Transaction transaction(*connection, kPromised);
    const Result removed =
        connection->run("DELETE FROM halftone_jobs WHERE id = $1 AND state >= 2", id);
    if (removed.changed() == 0) return false;
    commit(*connection, transaction, {});
  }
  tell();
  return true;
}

void PostgresStore::add_key(const ApiKey& key) {
  const Pool::Lease connection = pool_.take();
  const Result added = connection->run(
      "INSERT INTO halftone_keys (name, hash, created) "
      "VALUES ($1, $2, CASE WHEN $3::float8 > 0 THEN $3 ELSE " HT_PG_NOW
      " END) ON CONFLICT DO NOTHING",
      key.name, key.hash, key.created);
  if (added.changed() == 0) {
    throw Error(ErrorCode::kInvalidInput, key.name, "there is a key of this name already");
  }
}

bool PostgresStore::remove_key(const std::string& name) {
  const Pool::Lease connection = pool_.take();
  return connection->run("DELETE FROM halftone_keys WHERE name = $1", name).changed() > 0;
}

void PostgresStore::backup(const std::string& /*path*/) {
  throw Error(ErrorCode::kUnsupported, "postgresql",
              "is copied with its own tools while it is used: pg_dump, or a base backup");
}

}  // namespace postgres

std::unique_ptr<Store> open_postgres_store(const std::string& url, double lease_seconds) {
  return std::make_unique<postgres::PostgresStore>(url, lease_seconds);
}

}  // namespace halftone
