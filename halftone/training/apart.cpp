#include "halftone/training/apart.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "halftone/base/error.h"

namespace halftone {
namespace {

// An Error on its way between processes: code, where and message, each with a NUL behind it.
std::string packed(const Error& error) {
  return std::to_string(static_cast<int>(error.code())) + '\0' + error.where() + '\0' +
         error.message() + '\0';
}
[[noreturn]] void throw_packed(const std::string& text) {
  std::array<std::string, 3> parts;
  size_t begin = 0;
  for (std::string& part : parts) {
    const size_t end = std::min(text.find('\0', begin), text.size());
    part = text.substr(begin, end - begin);
    begin = std::min(end + 1, text.size());
  }
  throw Error(static_cast<ErrorCode>(std::atoi(parts[0].c_str())), parts[1], "{}", parts[2]);
}

// In the new process, which whoever ends the old one by its group does not reach.
[[noreturn]] void work_in(const std::function<void()>& work, int answers) {
  ::setsid();
  std::string failure;
  try {
    work();
  } catch (const Error& error) {
    failure = packed(error);
  } catch (const std::exception& error) {
    failure = packed(Error(ErrorCode::kIo, "", "{}", error.what()));
  }
  const bool told = failure.empty() || ::write(answers, failure.data(), failure.size()) > 0;
  ::_exit(failure.empty() && told ? 0 : 1);
}

}  // namespace

void run_apart(const std::function<void()>& work) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return work();
  const pid_t child = ::fork();
  if (child < 0) {
    for (const int end : ends) ::close(end);
    return work();
  }
  if (child == 0) {
    ::close(ends[0]);
    work_in(work, ends[1]);
  }
  ::close(ends[1]);
  std::string failure;
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t got = ::read(ends[0], buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    failure.append(buffer.data(), static_cast<size_t>(got));
  }
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!failure.empty()) throw_packed(failure);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw Error(ErrorCode::kIo, "", "the process that was to write it has died");
  }
}

}  // namespace halftone
