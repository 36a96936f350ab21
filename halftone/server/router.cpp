#include "halftone/server/router.h"

#include <charconv>

#include "halftone/base/error.h"
#include "halftone/io/json.h"

namespace halftone {
namespace {

std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  for (size_t at = 1; at <= path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    parts.push_back(path.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

bool matches(const std::string& pattern, const std::string& path,
             std::map<std::string, std::string>& values) {
  const auto wanted = parts_of(pattern), given = parts_of(path);
  for (size_t i = 0; i < wanted.size(); ++i) {
    const std::string& part = wanted[i];
    if (i >= given.size()) return false;
    if (!part.starts_with('{')) {
      if (part != given[i]) return false;
    } else if (part.ends_with("...}")) {
      std::string rest = given[i];
      for (size_t j = i + 1; j < given.size(); ++j) rest += "/" + given[j];
      if (rest.empty()) return false;
      values[part.substr(1, part.size() - 5)] = rest;
      return true;
    } else {
      if (given[i].empty()) return false;
      values[part.substr(1, part.size() - 2)] = given[i];
    }
  }
  return wanted.size() == given.size();
}

}  // namespace

int64_t ApiCall::number(const std::string& name, int64_t fallback, int64_t least,
                        int64_t most) const {
  const auto found = request.query.find(name);
  if (found == request.query.end()) return fallback;
  int64_t value = 0;
  const std::string& text = found->second;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    throw invalid(
        name, fmt::format("'{}' is no whole number from {} to {}", printable(text), least, most));
  }
  return value;
}

void Router::add(Route route) { routes_.push_back(std::move(route)); }

Router::Match Router::find(const std::string& method, const std::string& path) const {
  const std::string wanted = method == "HEAD" ? "GET" : method;
  std::string others;
  for (const Route& route : routes_) {
    Match match{&route, {}};
    if (!matches(route.pattern, path, match.path)) continue;
    if (route.method == wanted) return match;
    others += (others.empty() ? "" : ", ") + route.method;
  }
  if (others.empty()) throw not_found(fmt::format("there is nothing at '{}'", printable(path)));
  ApiError error(405, "method_not_allowed", "",
                 fmt::format("'{}' takes {}", printable(path), others));
  error.allowed = others;
  throw error;
}

nlohmann::json Router::read_body(const HttpRequest& request) {
  const std::string type = request.header("content-type");
  // What a form of another site could send without asking is not taken.
  if (type != "application/json" && !type.starts_with("application/json;")) {
    throw ApiError(415, "unsupported_media", "", "the body is to be application/json");
  }
  try {
    return parse_json(request.body, "body");
  } catch (const Error& error) {
    throw invalid("", "the body is not to be read: " + error.message());
  }
}

}  // namespace halftone
