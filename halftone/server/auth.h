// Who may ask: API keys, of which only hashes are kept, and sessions of browsers; and which
// requests are no one's, because another page made a browser send them.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "halftone/server/http_message.h"
#include "halftone/server/store.h"

namespace halftone {

std::string make_key();  // "ht_..." with 256 random bits
std::string hash_of_key(const std::string& key);

class Auth {
 public:
  enum class Need : uint8_t { kNobody, kIfThereAreKeys, kEverybody };
  // Where no key is needed, everyone may ask who reaches the server by one of these names (in lower
  // case) or by an address.
  Auth(Store& store, Need need, std::vector<std::string> hosts);

  bool needs_key() const;
  // Whose request it is; an ApiError (401, 403) where it is not to be answered. `is_open` paths
  // need no key.
  std::string check(const HttpRequest& request, bool is_open);

  // A session for a browser that has shown a key: the value of its cookie.
  std::string log_in(const std::string& key);
  void log_out(const HttpRequest& request);

  static constexpr const char* kCookie = "halftone_session";

 private:
  std::optional<std::string> owner_of(const std::string& key);
  void check_origin(const HttpRequest& request, bool is_open) const;

  Store& store_;
  Need need_;
  std::vector<std::string> hosts_;
  std::mutex mutex_;
  struct Session {
    std::string owner;
    double until = 0;
  };
  std::map<std::string, Session> sessions_;  // by the hash of the cookie
};

}  // namespace halftone
