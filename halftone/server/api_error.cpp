#include "halftone/server/api_error.h"

#include <filesystem>

namespace halftone {

std::string dump(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

ApiError api_error(const Error& error) {
  const bool is_path = error.where().find('/') != std::string::npos;
  const auto made = [&](int status, const char* code) {
    if (!is_path) return ApiError(status, code, error.where(), error.message());
    const std::string name = std::filesystem::path(error.where()).filename().string();
    return ApiError(status, code, "", name + ": " + error.message());
  };
  switch (error.code()) {
    case ErrorCode::kUsage:
    case ErrorCode::kInvalidInput:
    case ErrorCode::kUnsupported:
      return made(400, "invalid");
    case ErrorCode::kNotFound:
      return made(404, "not_found");
    case ErrorCode::kOutOfMemory:
      return made(422, "does_not_fit");
    case ErrorCode::kFallback:
      return made(409, "fell_back");
    case ErrorCode::kCancelled:
      return made(409, "cancelled");
    case ErrorCode::kDiskFull:
      return made(507, "disk_full");
    case ErrorCode::kIo:
      break;
  }
  return made(500, "internal");
}

nlohmann::ordered_json error_json(const ApiError& error) {
  nlohmann::ordered_json body;
  body["code"] = error.code;
  body["field"] = error.field;
  body["message"] = error.message;
  return {{"error", body}};
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response = json_response(error_json(error), error.status);
  if (error.retry_after > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after));
  }
  if (!error.allowed.empty()) response.headers.emplace_back("Allow", error.allowed);
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

HttpResponse json_response(const nlohmann::ordered_json& json, int status) {
  HttpResponse response;
  response.status = status;
  response.body = dump(json) + "\n";
  return response;
}

}  // namespace halftone
