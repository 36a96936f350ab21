// The page, health, numbers for Prometheus, and the document that describes everything.
#include "halftone/base/error.h"
#include "halftone/runtime/devices.h"
#include "halftone/server/api.h"
#include "halftone/server/studio_files.h"

namespace halftone {
namespace {

HttpResponse text_response(std::string text, const char* type = "text/plain; charset=utf-8",
                           int status = 200) {
  HttpResponse response;
  response.status = status;
  response.type = type;
  response.body = std::move(text);
  return response;
}

const char* type_of(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".svg")) return "image/svg+xml";
  return "application/octet-stream";
}

HttpResponse page_file(std::string_view name) {
  for (const StudioFile& file : studio_files()) {
    if (file.name != name) continue;
    HttpResponse response = text_response(std::string(file.bytes), type_of(name));
    // What a new version of the program brings is seen at once.
    response.headers.emplace_back("Cache-Control", "no-cache");
    return response;
  }
  throw not_found("there is no such file");
}

}  // namespace

void add_page_routes(Router& router, ApiContext&) {
  router.add({.method = "GET",
              .pattern = "/",
              .summary = "The page",
              .open = true,
              .result = "text/html",
              .answer = [](const ApiCall&) { return page_file("index.html"); }});
  router.add({.method = "GET",
              .pattern = "/studio/{file}",
              .summary = "Its parts",
              .open = true,
              .result = "text/javascript",
              .answer = [](const ApiCall& call) { return page_file(call.path.at("file")); }});
  router.add({.method = "GET",
              .pattern = "/favicon.ico",
              .summary = "Its icon",
              .open = true,
              .result = "image/svg+xml",
              .answer = [](const ApiCall&) { return page_file("mark.svg"); }});
}

void add_operation_routes(Router& router, ApiContext& api) {
  router.add({.method = "GET",
              .pattern = "/healthz",
              .summary = "Whether the server is alive",
              .open = true,
              .result = "text/plain",
              .answer = [](const ApiCall&) { return text_response("ok\n"); }});
  router.add({.method = "GET",
              .pattern = "/readyz",
              .summary = "Whether it takes jobs",
              .open = true,
              .result = "text/plain",
              .answer = [&api](const ApiCall&) {
                if (api.stopping) {
                  ApiError error(503, "stopping", "", "the server is about to end");
                  error.retry_after = 10;
                  throw error;
                }
                api.store.counts();  // an Error where the store cannot be reached
                return text_response("ready\n");
              }});
  router.add({.method = "GET",
              .pattern = "/metrics",
              .summary = "Numbers, as Prometheus reads them",
              .result = "text/plain",
              .answer = [&api](const ApiCall&) {
                const Store::Counts counts = api.store.counts();
                api.metrics.set("halftone_queued", static_cast<double>(counts.queued));
                api.metrics.set("halftone_running", static_cast<double>(counts.running));
                api.metrics.set("halftone_memory_bytes", static_cast<double>(anonymous_memory()));
                api.metrics.set("halftone_connections", api.connections());
                api.metrics.set("halftone_models_loaded", static_cast<double>(api.loaded().size()));
                return text_response(api.metrics.text(),
                                     "text/plain; version=0.0.4; charset=utf-8");
              }});
  router.add({.method = "GET",
              .pattern = "/openapi.json",
              .summary = "This document",
              .open = true,
              .result = "Any",
              .answer = [&router](const ApiCall&) { return json_response(openapi(router)); }});
}

}  // namespace halftone
