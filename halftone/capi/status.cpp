#include "halftone/capi/status.h"

#include <filesystem>
#include <new>
#include <string>

#include "halftone/base/error.h"
#include "halftone/base/version.h"

namespace halftone::capi {
namespace {

// Of a thread: calls that run at the same time do not overwrite each other's.
struct LastError {
  std::string message, field;
  const char* fixed = nullptr;  // where there is no memory for words
};
LastError& last_error() {
  thread_local LastError error;
  return error;
}

halftone_status status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidInput:
      return HALFTONE_INVALID_INPUT;
    case ErrorCode::kUsage:
      return HALFTONE_USAGE;
    case ErrorCode::kNotFound:
      return HALFTONE_NOT_FOUND;
    case ErrorCode::kIo:
    case ErrorCode::kDiskFull:
      return HALFTONE_IO;
    case ErrorCode::kUnsupported:
      return HALFTONE_UNSUPPORTED;
    case ErrorCode::kOutOfMemory:
      return HALFTONE_OUT_OF_MEMORY;
    case ErrorCode::kFallback:
      return HALFTONE_FALLBACK;
    case ErrorCode::kCancelled:
      return HALFTONE_CANCELLED;
  }
  return HALFTONE_INTERNAL;
}

halftone_status fail(halftone_status status, const char* message, const char* field) noexcept {
  LastError& error = last_error();
  error.fixed = nullptr;
  try {
    error.message = message;
    error.field = field;
  } catch (const std::bad_alloc&) {
    error.fixed = "out of memory";
    error.field.clear();
  }
  return status;
}

}  // namespace

halftone_status guarded(const std::function<void()>& body) noexcept {
  try {
    body();
    return HALFTONE_OK;
  } catch (const Error& error) {
    return fail(status_of(error.code()), error.what(), error.where().c_str());
  } catch (const std::bad_alloc&) {
    return fail(HALFTONE_OUT_OF_MEMORY, "out of memory", "");
  } catch (const std::filesystem::filesystem_error& error) {
    return fail(HALFTONE_IO, error.what(), error.path1().c_str());
  } catch (const std::exception& error) {
    return fail(HALFTONE_INTERNAL, error.what(), "");
  } catch (...) {
    return fail(HALFTONE_INTERNAL, "an exception of an unknown kind", "");
  }
}

void check_not_null(const void* argument, const char* name) {
  if (argument == nullptr) throw Error(ErrorCode::kUsage, name, "is NULL");
}

}  // namespace halftone::capi

const char* halftone_last_error(void) {
  const auto& error = halftone::capi::last_error();
  return error.fixed != nullptr ? error.fixed : error.message.c_str();
}

const char* halftone_last_error_field(void) { return halftone::capi::last_error().field.c_str(); }

const char* halftone_status_name(halftone_status status) {
  switch (status) {
    case HALFTONE_OK:
      return "ok";
    case HALFTONE_INVALID_INPUT:
      return "invalid input";
    case HALFTONE_USAGE:
      return "wrong usage";
    case HALFTONE_NOT_FOUND:
      return "not found";
    case HALFTONE_IO:
      return "input or output";
    case HALFTONE_UNSUPPORTED:
      return "unsupported";
    case HALFTONE_OUT_OF_MEMORY:
      return "out of memory";
    case HALFTONE_FALLBACK:
      return "fallback";
    case HALFTONE_CANCELLED:
      return "cancelled";
    case HALFTONE_INTERNAL:
      return "internal";
  }
  return "unknown";
}

const char* halftone_version(void) { return halftone::version(); }
