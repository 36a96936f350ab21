// Which job is next.
#include <algorithm>
#include <limits>
#include <map>

#include "halftone/server/sqlite_store.h"

namespace halftone::sqlite {
namespace {

bool is_among(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_wished(const JobWish& wish, const std::string& kind, const std::string& model) {
  return is_among(wish.kinds, kind) && (wish.models.empty() || is_among(wish.models, model)) &&
         !is_among(wish.not_models, model);
}

}  // namespace

// Jobs that wait are grouped by priority, kind, model and owner. Of each group only the oldest may
// be next, and an index goes from group to group: ten thousand jobs cost no more than ten.
std::optional<std::string> SqliteStore::next_id(const JobWish& wish) {
  struct Head {
    int64_t rank = std::numeric_limits<int64_t>::min();
    std::string kind, model, owner, id;
  };
  constexpr const char* kAfterIds = "~";
  std::map<std::string, int64_t> running;
  {
    Query query =
        database_.query("SELECT owner, count(*) FROM jobs WHERE state = 1 GROUP BY owner");
    while (query.next()) running[query.text(0)] = query.integer(1);
  }
  const auto running_of = [&](const std::string& owner) {
    const auto found = running.find(owner);
    return found == running.end() ? 0 : found->second;
  };
  const double now = store_seconds();
  std::optional<Head> best;
  for (Head head;;) {
    Query query = database_.query(
        "SELECT rank, kind, model, owner, id FROM jobs INDEXED BY jobs_by_turn WHERE state = 0 "
        "AND (rank, kind, model, owner, id) > (?1, ?2, ?3, ?4, ?5) "
        "AND attempts < ?6 AND (deadline = 0 OR deadline > ?7) "
        "ORDER BY rank, kind, model, owner, id LIMIT 1",
        head.rank, head.kind, head.model, head.owner, kAfterIds, kMostAttempts, now);
    if (!query.next()) break;
    head = {query.integer(0), query.text(1), query.text(2), query.text(3), query.text(4)};
    if (best && head.rank > best->rank) break;
    if (!is_wished(wish, head.kind, head.model)) continue;
    const auto turn = [&](const Head& of) { return std::pair(running_of(of.owner), of.id); };
    if (!best || turn(head) < turn(*best)) best = head;
  }
  if (!best) return std::nullopt;
  return best->id;
}

bool SqliteStore::fail_hopeless() {
  struct Hopeless {
    std::string id, kind;
    bool spent;
  };
  std::vector<Hopeless> found;
  {
    Query query = database_.query(
        "SELECT id, kind, 1 FROM jobs INDEXED BY jobs_spent WHERE state = 0 AND attempts >= 3 "
        "UNION ALL SELECT id, kind, 0 FROM jobs INDEXED BY jobs_by_deadline "
        "WHERE state = 0 AND deadline > 0 AND deadline <= ?1 AND attempts < 3",
        store_seconds());
    while (query.next()) found.push_back({query.text(0), query.text(1), query.integer(2) != 0});
  }
  for (const Hopeless& job : found) {
    database_.run("UPDATE jobs SET error = ?2 WHERE id = ?1", job.id,
                  job.spent ? attempts_error() : deadline_error());
    end(job.id, job.kind, JobState::kFailed);
  }
  return !found.empty();
}

std::optional<StoredJob> SqliteStore::claim(const JobWish& wish) {
  std::optional<StoredJob> job;
  {
    const std::lock_guard lock(mutex_);
    Transaction transaction(database_, kRepeatable);
    const bool failed = fail_hopeless();
    const std::optional<std::string> id = next_id(wish);
    if (!id && !failed) return std::nullopt;
    if (id) {
      database_.run(
          "UPDATE jobs SET state = 1, started = ?2, attempts = attempts + 1, server = ?3 "
          "WHERE id = ?1",
          *id, store_seconds(), server_);
      job = get(*id);
      add_state_event(job->id, job->kind, JobState::kRunning);
    }
    transaction.commit();
  }
  tell();
  return job;
}

std::optional<StoredJob> SqliteStore::peek(const JobWish& wish) {
  const std::lock_guard lock(mutex_);
  const std::optional<std::string> id = next_id(wish);
  return id ? get(*id) : std::nullopt;
}

}  // namespace halftone::sqlite
