#include "halftone/server/store.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/server/store_parts.h"

namespace halftone {
namespace {

// Crockford's: without I, L, O and U, which are mistaken for others. In the order of ASCII.
constexpr std::string_view kDigits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
constexpr size_t kTimeDigits = 10, kIdDigits = 26;

constexpr std::array<std::string_view, 5> kStateNames = {"queued", "running", "done", "failed",
                                                         "cancelled"};

void fill_with_randomness(std::span<uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::getrandom(bytes.data(), bytes.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      throw Error(ErrorCode::kIo, "random numbers", "{}", std::strerror(errno));
    }
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

std::string random_digits(size_t count) {
  std::vector<uint8_t> bytes(count);
  fill_with_randomness(bytes);
  std::string digits;
  for (const uint8_t byte : bytes) digits += kDigits[byte % kDigits.size()];
  return digits;
}

bool is_job_id(std::string_view id) {
  return id.size() == kIdDigits && id.find_first_not_of(kDigits) == std::string_view::npos;
}

std::string successor(std::string id) {
  for (size_t i = id.size(); i-- > 0;) {
    const size_t digit = kDigits.find(id[i]);
    id[i] = kDigits[(digit + 1) % kDigits.size()];
    if (digit + 1 < kDigits.size()) break;
  }
  return id;
}

// Names and kinds may be anything that a client has sent: what is not UTF-8 is replaced.
std::string stored_json(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string stored_error(const char* code, const char* field, const std::string& message) {
  return nlohmann::ordered_json{{"code", code}, {"field", field}, {"message", message}}.dump();
}

}  // namespace

std::string to_string(JobState state) {
  return std::string(kStateNames[static_cast<size_t>(state)]);
}

std::optional<JobState> parse_job_state(std::string_view name) {
  const auto found = std::find(kStateNames.begin(), kStateNames.end(), name);
  if (found == kStateNames.end()) return std::nullopt;
  return static_cast<JobState>(found - kStateNames.begin());
}

std::string next_job_id(double seconds, std::string_view last) {
  std::string id(kTimeDigits, '0');
  auto milliseconds = static_cast<uint64_t>(std::max(seconds, 0.0) * 1000);
  for (size_t i = kTimeDigits; i-- > 0; milliseconds /= kDigits.size()) {
    id[i] = kDigits[milliseconds % kDigits.size()];
  }
  if (is_job_id(last) && id <= last.substr(0, kTimeDigits)) return successor(std::string(last));
  return id + random_digits(kIdDigits - kTimeDigits);
}

std::string make_server_name() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  return fmt::format("{}-{}-{}", host.data(), ::getpid(), random_digits(8));
}

std::string state_event(const std::string& job, const std::string& kind, JobState state) {
  return stored_json({{"job", job}, {"kind", kind}, {"state", to_string(state)}});
}

std::string deadline_error() {
  return stored_error("timeout", "timeout", "its time was over before it was begun");
}

std::string attempts_error() {
  return stored_error("attempts", "",
                      fmt::format("it was begun {} times, and each time its server was "
                                  "gone before it had ended",
                                  Store::kMostAttempts));
}

void check_change(const JobChange& change) {
  if (change.state == JobState::kRunning) {
    throw Error(ErrorCode::kInvalidInput, change.job, "a running job cannot be made to run");
  }
}

}  // namespace halftone
