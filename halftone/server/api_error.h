// What went wrong with a request, as a client is told: a status, a code that programs look at, the
// field that is wrong, and a line for people.
#pragma once

#include <exception>
#include <nlohmann/json.hpp>
#include <string>

#include "halftone/base/error.h"
#include "halftone/server/http_message.h"

namespace halftone {

struct ApiError : std::exception {
  ApiError(int status_, std::string code_, std::string field_, std::string message_)
      : status(status_),
        code(std::move(code_)),
        field(std::move(field_)),
        message(std::move(message_)) {}
  const char* what() const noexcept override { return message.c_str(); }

  int status;
  std::string code, field, message;
  int retry_after = 0;  // seconds; 0: not said
  std::string allowed;  // methods, with 405
};

inline ApiError invalid(const std::string& field, const std::string& message) {
  return {400, "invalid", field, message};
}
inline ApiError not_found(const std::string& what) { return {404, "not_found", "", what}; }

// What the engine throws, in the server's words. Paths of this machine stay here.
ApiError api_error(const Error& error);

nlohmann::ordered_json error_json(const ApiError& error);  // {"error": {...}}
HttpResponse error_response(const ApiError& error);
HttpResponse json_response(const nlohmann::ordered_json& json, int status = 200);
// Text that JSON can hold: what is no UTF-8 is replaced.
std::string dump(const nlohmann::ordered_json& json);

}  // namespace halftone
