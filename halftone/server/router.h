// Which function answers which request. The table is also what the OpenAPI document is written
// from.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "halftone/server/api_error.h"
#include "halftone/server/http_message.h"
#include "halftone/server/schema.h"

namespace halftone {

struct ApiCall {
  const HttpRequest& request;
  std::map<std::string, std::string> path;  // what stands for {id} and so on
  std::string owner;                        // the name of the key; empty without one
  nlohmann::json body;                      // where the route takes JSON

  // A number of the query.
  int64_t number(const std::string& name, int64_t fallback, int64_t least, int64_t most) const;
};

struct Route {
  std::string method, pattern;  // "GET", "/api/jobs/{id}"; {file...} stands for the whole rest
  std::string summary;
  const ObjectSchema* body = nullptr;
  bool takes_bytes = false;  // a body that is no JSON
  int64_t most_bytes = 0;    // of that; 0: as much as a picture may have
  bool open = false;         // needs no key
  std::string result;        // the name of a schema in the document, or a media type
  int status = 200;          // where all is well
  std::vector<std::string> query = {};
  // One of these two. ApiError and Error become answers.
  std::function<HttpResponse(const ApiCall&)> answer = nullptr;
  std::function<void(const ApiCall&, const std::shared_ptr<HttpExchange>&)> answer_later = nullptr;
};

class Router {
 public:
  void add(Route route);
  const std::vector<Route>& routes() const { return routes_; }

  // The route, and what stands for its parts; an ApiError where there is none.
  struct Match {
    const Route* route = nullptr;
    std::map<std::string, std::string> path;
  };
  Match find(const std::string& method, const std::string& path) const;

  // The body of a request to a route that takes JSON.
  static nlohmann::json read_body(const HttpRequest& request);

 private:
  std::vector<Route> routes_;
};

}  // namespace halftone
