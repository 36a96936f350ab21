// The document that describes the server, from the table of its routes.
#include <algorithm>
#include <cctype>

#include "halftone/base/version.h"
#include "halftone/server/api.h"
#include "halftone/server/openapi_schemas.h"

namespace halftone {
namespace {

using nlohmann::ordered_json;

ordered_json reference(const std::string& name) {
  return {{"$ref", "#/components/schemas/" + name}};
}

// {file...} is {file} in the document.
std::string document_path(std::string pattern) {
  const size_t dots = pattern.find("...}");
  if (dots != std::string::npos) pattern.erase(dots, 3);
  return pattern;
}

ordered_json parameters_of(const Route& route) {
  ordered_json parameters = ordered_json::array();
  const std::string path = document_path(route.pattern);
  for (size_t at = path.find('{'); at != std::string::npos; at = path.find('{', at + 1)) {
    parameters.push_back({{"name", path.substr(at + 1, path.find('}', at) - at - 1)},
                          {"in", "path"},
                          {"required", true},
                          {"schema", {{"type", "string"}}}});
  }
  for (const std::string& name : route.query) {
    const bool number = name == "limit" || name == "after";
    parameters.push_back(
        {{"name", name}, {"in", "query"}, {"schema", {{"type", number ? "integer" : "string"}}}});
  }
  return parameters;
}

ordered_json body_of(const Route& route) {
  if (route.takes_bytes) {
    return {{"required", true},
            {"content", {{"application/octet-stream", {{"schema", ordered_json::object()}}}}}};
  }
  const bool free_form = route.body->fields.empty();
  const ordered_json schema =
      free_form ? ordered_json{{"type", "object"}} : to_json_schema(*route.body);
  return {{"required", true}, {"content", {{"application/json", {{"schema", schema}}}}}};
}

ordered_json answers_of(const Route& route) {
  ordered_json good = {{"description", route.summary}};
  if (route.result.find('/') != std::string::npos) {
    good["content"][route.result]["schema"] = ordered_json::object();
  } else if (!route.result.empty()) {
    good["content"]["application/json"]["schema"] = reference(route.result);
  }
  ordered_json bad = {{"description", "What went wrong"}};
  bad["content"]["application/json"]["schema"] = reference("Error");
  ordered_json answers;
  if (route.method == "PUT") {  // where something was there before
    answers[route.result.empty() ? "204" : "200"] = good;
  }
  answers[std::to_string(route.status)] = std::move(good);
  answers["default"] = std::move(bad);
  return answers;
}

// "post_api_jobs_id_cancel"
std::string operation_id(const Route& route) {
  std::string id;
  for (const char c : route.method + document_path(route.pattern)) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (plain) id += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (!plain && !id.empty() && id.back() != '_') id += '_';
  }
  while (!id.empty() && id.back() == '_') id.pop_back();
  return id;
}

}  // namespace

ordered_json openapi(const Router& router) {
  ordered_json document = {{"openapi", "3.1.0"}};
  document["info"] = {
      {"title", "Halftone"},
      {"version", version()},
      {"description", "Generates, trains, quantizes and compares diffusion models"}};
  for (const Route& route : router.routes()) {
    std::string method = route.method;
    std::ranges::transform(method, method.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    ordered_json operation = {{"operationId", operation_id(route)}, {"summary", route.summary}};
    operation["parameters"] = parameters_of(route);
    if (route.body != nullptr || route.takes_bytes) operation["requestBody"] = body_of(route);
    operation["responses"] = answers_of(route);
    if (route.open) operation["security"] = ordered_json::array();
    document["paths"][document_path(route.pattern)][method] = std::move(operation);
  }
  document["components"]["schemas"] = ordered_json::parse(kAnswerSchemas);
  document["components"]["securitySchemes"] = {
      {"key", {{"type", "http"}, {"scheme", "bearer"}}},
      {"session", {{"type", "apiKey"}, {"in", "cookie"}, {"name", Auth::kCookie}}}};
  document["security"] = ordered_json::array();
  for (const char* scheme : {"key", "session"}) {
    document["security"].push_back({{scheme, ordered_json::array()}});
  }
  document["security"].push_back(ordered_json::object());
  return document;
}

}  // namespace halftone
