// What the server answers: routes of the native API, of those that other programs speak, and of the
// page. Each file adds its own.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "halftone/server/auth.h"
#include "halftone/server/datasets.h"
#include "halftone/server/event_hub.h"
#include "halftone/server/log.h"
#include "halftone/server/long_job.h"
#include "halftone/server/metrics.h"
#include "halftone/server/previews.h"
#include "halftone/server/requests.h"
#include "halftone/server/router.h"
#include "halftone/server/shelf.h"
#include "halftone/server/store.h"

namespace halftone {

// What all routes work with. It outlives them.
struct ApiContext {
  Shelf& shelf;
  Store& store;
  EventHub& hub;
  Metrics& metrics;
  Previews& previews;
  Datasets& datasets;
  Auth& auth;
  const DataFolders& folders;
  const RequestLimits& limits;
  const RequestSchemas& schemas;
  std::function<std::vector<std::string>()> loaded;  // "emoji|fp8", ...
  std::function<void()> wake_workers;
  std::function<void(const std::string& job)> cancel_soon;
  std::function<int()> connections;
  std::atomic<bool>& stopping;
  double started = 0;  // seconds since 1970
};

void add_job_routes(Router& router, ApiContext& api);
void add_native_routes(Router& router, ApiContext& api);
void add_lora_routes(Router& router, ApiContext& api);
void add_dataset_routes(Router& router, ApiContext& api);
void add_openai_routes(Router& router, ApiContext& api);
void add_sdapi_routes(Router& router, ApiContext& api);
void add_page_routes(Router& router, ApiContext& api);
void add_operation_routes(Router& router, ApiContext& api);  // health, metrics, the document

// The document that describes the routes, OpenAPI 3.1.
nlohmann::ordered_json openapi(const Router& router);

// Queues a job for a key's owner: an ApiError where too many wait, or the server stops.
StoredJob submit(ApiContext& api, NewJob job, const std::string& owner);
nlohmann::ordered_json job_json(ApiContext& api, const StoredJob& job);
StoredJob find_job(ApiContext& api, const std::string& id);

// Replies when a job has ended; a client that goes away before cancels it.
void reply_when_ended(ApiContext& api, const std::string& job,
                      const std::shared_ptr<HttpExchange>& exchange,
                      std::function<HttpResponse(const StoredJob&)> make);
// The bytes of a job's pictures, in order.
std::vector<std::string> pictures_of(ApiContext& api, const std::string& job);

}  // namespace halftone
