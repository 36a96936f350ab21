// What can be asked for: the schemas of requests, and their checks against the models that there
// are, so that what is wrong is told at once and not when a job's turn has come.
#pragma once

#include <nlohmann/json.hpp>

#include "halftone/server/schema.h"
#include "halftone/server/shelf.h"
#include "halftone/server/store.h"

namespace halftone {

// What JavaScript can hold exactly.
inline constexpr int64_t kMostSeed = (int64_t{1} << 53) - 1;

struct RequestLimits {
  int64_t most_pixels = 4096 * 4096;
  int most_steps = 200;
  int most_count = 64;
  uint64_t most_prompt_bytes = 8192;
  int64_t most_upload_bytes = 64 << 20;  // of a picture
  int64_t most_lora_bytes = 512 << 20;   // of an adapter
  int64_t most_queued = 256;
  int64_t most_train_steps = 100000;
};

// Made for these limits once, when a server starts.
struct RequestSchemas {
  explicit RequestSchemas(const RequestLimits& limits);
  RequestSchemas(const RequestSchemas&) = delete;  // `generate` points to `lora`
  RequestSchemas& operator=(const RequestSchemas&) = delete;

  ObjectSchema lora, generate, train, quantize, compare, dataset, login;
};

// An ApiError where a model of this name is there, whoever made it.
// Why a model cannot be quantized; empty: it can.
std::string why_not_quantized(const ModelOnShelf& model);
void check_new_model(Shelf& shelf, const std::filesystem::path& models, const std::string& name);

// A job as it is queued: the request with everything filled in.
NewJob generate_job(const RequestSchemas& schemas, const RequestLimits& limits, Shelf& shelf,
                    const nlohmann::json& body);
NewJob quantize_job(const RequestSchemas& schemas, Shelf& shelf, const nlohmann::json& body,
                    const std::filesystem::path& models);
NewJob compare_job(const RequestSchemas& schemas, const RequestLimits& limits, Shelf& shelf,
                   const nlohmann::json& body);

}  // namespace halftone
