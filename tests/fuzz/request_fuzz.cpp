// Any JSON is a request with every default filled in, or an ApiError with status 400; what was
// checked is taken again as it is.
#include <cstdint>
#include <string>

#include "halftone/base/error.h"
#include "halftone/io/json.h"
#include "halftone/server/api_error.h"
#include "halftone/server/requests.h"

namespace halftone {
namespace {

void check(const ObjectSchema& schema, const nlohmann::json& body) {
  nlohmann::json request;
  try {
    request = checked(schema, body);
  } catch (const ApiError& error) {
    HT_ASSERT(error.status == 400 && !error.message.empty());
    return;
  }
  for (const Field& field : schema.fields) {
    const bool filled = field.is_needed || !field.fallback.is_null();
    HT_ASSERT(!filled || request.contains(field.name));
  }
  HT_ASSERT(checked(schema, request) == request);
}

}  // namespace
}  // namespace halftone

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halftone;
  static const RequestSchemas schemas{RequestLimits{}};
  nlohmann::json body;
  try {
    body = parse_json({reinterpret_cast<const char*>(data), size}, "body");
  } catch (const Error&) {
    return 0;
  }
  for (const ObjectSchema* schema :
       {&schemas.lora, &schemas.generate, &schemas.train, &schemas.quantize, &schemas.compare,
        &schemas.dataset, &schemas.login}) {
    check(*schema, body);
  }
  return 0;
}
