// The one exception of Halftone: what went wrong, and in which file, tensor or flag.
// Bad input throws it; broken invariants abort through HT_ASSERT; only main and servers catch.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <string>
#include <string_view>
#include <utility>

namespace halftone {

enum class ErrorCode {
  kInvalidInput,  // a file, tensor or value is not what it must be
  kUsage,         // the command line is wrong
  kNotFound,
  kIo,  // the operating system refused: full disk, permissions
  kUnsupported,
  kOutOfMemory,
  kFallback,  // what was asked for would have been replaced, and that was forbidden
  kCancelled,
  kDiskFull,  // as kIo, where room would help
};

class Error : public std::exception {
 public:
  template <class... Args>
  Error(ErrorCode code, std::string where, fmt::format_string<Args...> message, Args&&... args)
      : Error(Formatted{fmt::format(message, std::forward<Args>(args)...)}, code,
              std::move(where)) {}

  ErrorCode code() const { return code_; }
  const std::string& where() const { return where_; }      // file, tensor or flag
  const std::string& message() const { return message_; }  // the reason
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  struct Formatted {
    std::string text;
  };
  Error(Formatted message, ErrorCode code, std::string where);

  ErrorCode code_;
  std::string where_;
  std::string message_;
  std::string what_;  // one line: "where: message"
};

// A string from outside made safe for one line of terminal output: control characters and
// malformed UTF-8 are escaped, and what is longer than max_bytes is cut.
std::string printable(std::string_view text, size_t max_bytes = 200);

bool is_valid_utf8(std::string_view text);

// What the system's refusal to write is: kDiskFull or kIo.
ErrorCode write_error(int system_errno);

namespace detail {
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);
}

}  // namespace halftone

// An invariant of our own code, checked in every build.
#define HT_ASSERT(condition) \
  ((condition) ? void(0) : ::halftone::detail::assertion_failed(#condition, __FILE__, __LINE__))
