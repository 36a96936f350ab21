#include "halftone/server/auth.h"

#include <sodium.h>
#include <strings.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/server/api_error.h"
#include "halftone/server/clock.h"

namespace halftone {
namespace {

std::string to_hex(const unsigned char* bytes, size_t count) {
  std::string hex(2 * count + 1, '\0');
  sodium_bin2hex(hex.data(), hex.size(), bytes, count);
  hex.resize(2 * count);
  return hex;
}

std::string random_hex() {
  unsigned char bytes[32];
  randombytes_buf(bytes, sizeof bytes);
  return to_hex(bytes, sizeof bytes);
}

// Takes as long wherever they differ.
bool same(const std::string& a, const std::string& b) {
  return a.size() == b.size() && sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

// "127.0.0.1:8080" -> "127.0.0.1"; "[::1]:80" -> "::1".
std::string host_name(std::string host) {
  for (char& c : host) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  if (host.starts_with('[')) return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

// A page of somebody else can have any name stand for this machine, but not an address.
bool is_address(const std::string& name) {
  const auto among = [&](const char* letters) {
    return name.find_first_not_of(letters) == std::string::npos;
  };
  return !name.empty() && (among("0123456789.") ||
                           (among("0123456789abcdef:.") && name.find(':') != std::string::npos));
}

std::string cookie_of(const HttpRequest& request) {
  const std::string all = request.header("cookie"), name = std::string(Auth::kCookie) + "=";
  for (size_t at = 0; at < all.size();) {
    while (at < all.size() && all[at] == ' ') ++at;
    const size_t end = std::min(all.find(';', at), all.size());
    const std::string one = all.substr(at, end - at);
    if (one.starts_with(name)) return one.substr(name.size());
    at = end + 1;
  }
  return "";
}

}  // namespace

std::string make_key() { return "ht_" + random_hex(); }

// Keys have 256 random bits, so that a fast hash keeps them.
std::string hash_of_key(const std::string& key) {
  unsigned char hash[crypto_generichash_BYTES];
  crypto_generichash(hash, sizeof hash, reinterpret_cast<const unsigned char*>(key.data()),
                     key.size(), nullptr, 0);
  return to_hex(hash, sizeof hash);
}

Auth::Auth(Store& store, Need need, std::vector<std::string> hosts)
    : store_(store), need_(need), hosts_(std::move(hosts)) {
  if (sodium_init() < 0) throw Error(ErrorCode::kIo, "libsodium", "cannot be started");
}

bool Auth::needs_key() const {
  return need_ == Need::kEverybody || (need_ == Need::kIfThereAreKeys && !store_.keys().empty());
}

std::optional<std::string> Auth::owner_of(const std::string& key) {
  const std::string hash = hash_of_key(key);
  std::optional<std::string> owner;
  for (const ApiKey& known : store_.keys()) {
    if (same(known.hash, hash)) owner = known.name;
  }
  return owner;
}

// A page of somebody else may make a browser send requests here, but not choose these headers.
void Auth::check_origin(const HttpRequest& request, bool is_open) const {
  const std::string host = request.header("host");
  if (host.empty() && is_open) return;  // no browser: it would name the host
  const std::string name = host_name(host);
  if (!needs_key() && !is_address(name) && std::ranges::count(hosts_, name) == 0) {
    throw ApiError(403, "forbidden", "",
                   fmt::format("requests for the host '{}' are not answered", printable(name)));
  }
  const std::string origin = request.header("origin");
  if (origin.empty()) return;
  const size_t slashes = origin.find("://");
  if (slashes == std::string::npos || origin.substr(slashes + 3) != host) {
    throw ApiError(403, "forbidden", "", "requests of other sites are not answered");
  }
}

std::string Auth::check(const HttpRequest& request, bool is_open) {
  check_origin(request, is_open);
  if (is_open || !needs_key()) return "";
  const std::string bearer = "bearer ", given = request.header("authorization");
  if (::strncasecmp(given.c_str(), bearer.c_str(), bearer.size()) == 0) {
    const auto owner = owner_of(given.substr(bearer.size()));
    if (owner) return *owner;
    throw ApiError(401, "unauthorized", "", "this key is not known");
  }
  if (const std::string cookie = cookie_of(request); !cookie.empty()) {
    std::string owner;
    {
      const std::scoped_lock lock(mutex_);
      const auto session = sessions_.find(hash_of_key(cookie));
      if (session != sessions_.end() && session->second.until > steady_seconds()) {
        owner = session->second.owner;
      }
    }
    // A key that was taken back ends its sessions.
    for (const ApiKey& known : store_.keys()) {
      if (!owner.empty() && known.name == owner) return owner;
    }
  }
  throw ApiError(401, "unauthorized", "", "a key is needed: Authorization: Bearer KEY");
}

std::string Auth::log_in(const std::string& key) {
  const auto owner = owner_of(key);
  if (!owner) throw ApiError(401, "unauthorized", "key", "this key is not known");
  constexpr double kLasts = 30 * 24 * 3600;
  constexpr size_t kMostSessions = 10000;
  const std::string cookie = random_hex();
  const std::scoped_lock lock(mutex_);
  std::erase_if(sessions_,
                [](const auto& session) { return session.second.until < steady_seconds(); });
  if (sessions_.size() >= kMostSessions) sessions_.erase(sessions_.begin());
  sessions_[hash_of_key(cookie)] = {*owner, steady_seconds() + kLasts};
  return cookie;
}

void Auth::log_out(const HttpRequest& request) {
  const std::scoped_lock lock(mutex_);
  sessions_.erase(hash_of_key(cookie_of(request)));
}

}  // namespace halftone
