#include "halftone/io/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/text.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = ".halftone-", kSuffix = ".tmp";

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// Where a link points, so that renaming replaces what it points at and not the link.
fs::path follow(fs::path path) {
  std::error_code failed;
  for (int links = 0; links < 40 && fs::is_symlink(path, failed); ++links) {
    const fs::path target = fs::read_symlink(path, failed);
    if (failed) break;
    path = target.is_absolute() ? target : folder_of(path) / target;
  }
  return path;
}

// No trailing slash, which would put temporaries inside.
fs::path without_slash(const fs::path& path) {
  return path.has_filename() || !path.has_parent_path() ? path : path.parent_path();
}

void check_parent(const fs::path& path) {
  if (path.empty()) throw Error(ErrorCode::kUsage, "output", "the name is empty");
  const fs::path folder = folder_of(path);
  if (!path_exists(folder)) {
    throw Error(ErrorCode::kIo, path.string(), "there is no folder '{}'",
                printable(folder.string()));
  }
  if (!is_folder(folder)) {
    throw Error(ErrorCode::kIo, path.string(), "'{}' is no folder", printable(folder.string()));
  }
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    throw Error(ErrorCode::kIo, path.string(), "cannot write into its folder: {}",
                std::strerror(errno));
  }
  struct stat ignored{};
  if (::lstat(path.c_str(), &ignored) != 0 && errno != ENOENT) {  // a name that is too long, say
    throw Error(ErrorCode::kIo, path.string(), "{}", std::strerror(errno));
  }
}

// Room for what a temporary's name adds to its target's.
std::string shortened(const std::string& name) {
  constexpr size_t kMost = 200;
  if (name.size() <= kMost) return name;
  return fmt::format("{}~{:016x}", name.substr(0, 160), std::hash<std::string>()(name));
}

bool is_temporary_of(const std::string& name, const std::string& target) {
  if (!name.starts_with(target) || !name.ends_with(kSuffix)) return false;
  std::string_view rest = std::string_view(name).substr(target.size());
  if (!rest.starts_with(kMark) || rest.size() <= kMark.size() + kSuffix.size()) return false;
  rest = rest.substr(kMark.size(), rest.size() - kMark.size() - kSuffix.size());
  return rest.find_first_not_of("0123456789-") == std::string_view::npos;
}

bool try_lock(int fd) { return ::flock(fd, LOCK_EX | LOCK_NB) == 0; }

// What a killed run left behind: nobody holds its lock.
void remove_stale(const fs::path& target) {
  std::error_code failed;
  const std::string name = shortened(target.filename().string());
  for (auto it = fs::directory_iterator(folder_of(target), failed);
       !failed && it != fs::directory_iterator(); it.increment(failed)) {
    if (!is_temporary_of(it->path().filename().string(), name)) continue;
    const int fd = ::open(it->path().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) continue;
    std::error_code ignored;
    if (try_lock(fd)) fs::remove_all(it->path(), ignored);
    ::close(fd);
  }
}

// Whether the name still stands for what is open: another run may have taken it for stale before
// it was locked.
bool is_still_there(int fd, const fs::path& path) {
  struct stat opened{}, named{};
  return ::fstat(fd, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

int create(const fs::path& path, Temporary::Kind kind) {
  if (kind == Temporary::Kind::kFile) {
    return ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  }
  if (::mkdir(path.c_str(), 0777) != 0) return -1;
  return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

// Some file systems cannot sync a folder; the data itself is synced before.
void sync_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

void sync_below(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const int fd = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    const bool failed = fd < 0 || (::fsync(fd) != 0 && errno != EINVAL);
    const int error = errno;
    if (fd >= 0) ::close(fd);
    if (failed) {
      throw Error(write_error(error), entry.path().string(), "cannot sync: {}",
                  std::strerror(error));
    }
  }
}

// Files of `before` that nobody else has a name for go to `now`.
void keep_others(const fs::path& before, const fs::path& now,
                 const std::vector<std::string>& replaced) {
  std::vector<fs::path> others;
  for (auto it = fs::recursive_directory_iterator(before); it != fs::recursive_directory_iterator();
       ++it) {
    const fs::path relative = it->path().lexically_relative(before);
    const bool ours =
        std::find(replaced.begin(), replaced.end(), relative.begin()->string()) != replaced.end();
    if (it->is_directory() && !it->is_symlink()) {
      if (ours) it.disable_recursion_pending();
    } else if (!ours && !fs::exists(fs::symlink_status(now / relative))) {
      others.push_back(relative);
    }
  }
  for (const fs::path& relative : others) {
    fs::create_directories((now / relative).parent_path());
    fs::rename(before / relative, now / relative);
  }
}

// To write. Without a reader it would wait for ever, where no signal ends it: some seconds are
// enough for one that is being started as well.
int open_pipe(const fs::path& path) {
  constexpr int kTries = 100, kMilliseconds = 50;
  for (int i = 0; i < kTries; ++i) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0) {
      ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
      return fd;
    }
    if (errno != ENXIO) return fd;
    std::this_thread::sleep_for(std::chrono::milliseconds(kMilliseconds));
  }
  errno = ENXIO;
  return -1;
}

}  // namespace

void check_output_file(const fs::path& given) {
  if (given == "-") return;
  const fs::path path = follow(given);
  std::error_code ignored;
  const auto status = fs::status(path, ignored);
  if (fs::is_directory(status)) throw Error(ErrorCode::kIo, given.string(), "is a folder");
  const bool in_place = fs::exists(status) && !fs::is_regular_file(status);
  if (!in_place) return check_parent(path);
  if (::access(path.c_str(), W_OK) != 0) {
    throw Error(ErrorCode::kIo, given.string(), "cannot write to it: {}", std::strerror(errno));
  }
}

void check_output_folder(const fs::path& given, const std::string& marker) {
  const fs::path path = follow(without_slash(given));
  check_parent(path);
  if (!path_exists(path)) return;
  if (!is_folder(path)) throw Error(ErrorCode::kIo, given.string(), "is there, and is no folder");
  std::error_code failed;
  if (!fs::is_empty(path, failed) && !failed && !path_exists(path / marker)) {
    throw Error(ErrorCode::kIo, given.string(),
                "is a folder with other things in it (no '{}'); name a new one", marker);
  }
}

void check_distinct_outputs(std::initializer_list<std::pair<std::string, fs::path>> outputs) {
  for (auto a = outputs.begin(); a != outputs.end(); ++a) {
    for (auto b = outputs.begin(); b != a; ++b) {
      if (a->second.empty() || b->second.empty()) continue;
      std::error_code failed;
      const fs::path x = fs::weakly_canonical(a->second, failed),
                     y = fs::weakly_canonical(b->second, failed);
      if (x == y) {
        throw Error(ErrorCode::kUsage, a->first, "would be written to the same file as {}: '{}'",
                    b->first, printable(a->second.string()));
      }
    }
  }
}

void check_not_inputs(std::initializer_list<fs::path> outputs,
                      const std::vector<fs::path>& inputs) {
  std::error_code failed;
  for (const fs::path& output : outputs) {
    if (output.empty() || output == "-" || !path_exists(output)) continue;
    const std::string target = fs::weakly_canonical(follow(output), failed).string();
    for (const fs::path& input : inputs) {
      if (input.empty()) continue;
      const fs::path source = fs::weakly_canonical(input, failed);
      const bool inside = is_folder(source) && target.starts_with((source / "").string());
      if (target == source.string() || inside) {
        throw Error(ErrorCode::kUsage, output.string(), "the output would replace the input '{}'",
                    printable(input.string()));
      }
    }
  }
}

Temporary::Temporary(const fs::path& target, Kind kind) : target_(follow(without_slash(target))) {
  check_parent(target_);
  remove_stale(target_);
  const std::string name = shortened(target_.filename().string());
  for (int attempt = 0; fd_ < 0; ++attempt) {
    path_ =
        folder_of(target_) / fmt::format("{}{}{}-{}{}", name, kMark, ::getpid(), attempt, kSuffix);
    fd_ = create(path_, kind);
    if (fd_ < 0 && (errno != EEXIST || attempt > 1000)) {
      throw Error(write_error(errno), target_.string(), "cannot create it: {}",
                  std::strerror(errno));
    }
    if (fd_ < 0) continue;
    try_lock(fd_);  // where locks are not supported, no one finds this to be stale either
    if (!is_still_there(fd_, path_)) {
      ::close(fd_);
      fd_ = -1;
    }
  }
}

Temporary::~Temporary() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
  if (fd_ >= 0) ::close(fd_);
}

void Temporary::take_place() {
  if (::rename(path_.c_str(), target_.c_str()) != 0) {
    throw Error(write_error(errno), target_.string(), "cannot rename: {}", std::strerror(errno));
  }
  path_.clear();
  sync_folder(folder_of(target_));
}

bool is_being_written_to(const fs::path& folder) {
  std::error_code failed;
  bool locked = false;
  for (auto it = fs::directory_iterator(folder, failed);
       !failed && !locked && it != fs::directory_iterator(); it.increment(failed)) {
    const std::string name = it->path().filename().string();
    if (!is_temporary_of(name, name.substr(0, name.find(kMark)))) continue;
    const int fd = ::open(it->path().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) continue;
    locked = !try_lock(fd);
    ::close(fd);
  }
  return locked;
}

OutputFile::OutputFile(const fs::path& path, Access access) : name_(path.string()) {
  if (path == "-" && access == Access::kSequential) {
    name_ = "standard output";
    std::fflush(stdout);
    fd_ = STDOUT_FILENO;
    in_place_ = true;
    return;
  }
  std::error_code ignored;
  const auto status = fs::status(path, ignored);
  if (fs::is_directory(status)) throw Error(ErrorCode::kIo, name_, "is a folder");
  in_place_ = fs::exists(status) && !fs::is_regular_file(status);
  if (!in_place_) {
    temporary_ = std::make_unique<Temporary>(path, Temporary::Kind::kFile);
    fd_ = temporary_->fd();
    return;
  }
  if (access == Access::kRandom) throw Error(ErrorCode::kIo, name_, "is not a regular file");
  fd_ = fs::is_fifo(status) ? open_pipe(path) : ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd_ < 0 && errno == ENXIO) throw Error(ErrorCode::kIo, name_, "nobody reads from this pipe");
  if (fd_ < 0) fail("cannot open it", errno);
  owns_fd_ = true;
}

OutputFile::~OutputFile() {
  if (owns_fd_) ::close(fd_);
}

void OutputFile::write(std::span<const std::byte> bytes) {
  if (!in_place_) {
    write_at(written_, bytes);
    written_ += static_cast<int64_t>(bytes.size());
    return;
  }
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("cannot write", n < 0 ? errno : EIO);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void OutputFile::write_at(int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("cannot write", n < 0 ? errno : EIO);
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += n;
  }
}

void OutputFile::reserve(int64_t bytes) {
  if (::fallocate(fd_, 0, 0, bytes) != 0 && (errno == ENOSPC || errno == EFBIG)) {
    fail(fmt::format("no room for its {}", human_bytes(bytes)), errno);
  }
}

void OutputFile::commit() {
  if (in_place_) return;
  if (::fsync(fd_) != 0) fail("cannot sync", errno);
  temporary_->take_place();
}

void OutputFile::fail(const std::string& action, int error) const {
  throw Error(write_error(error), name_, "{}: {}", action, std::strerror(error));
}

void write_file(const fs::path& path, std::string_view text) {
  OutputFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

void OutputFolder::write(const std::function<void()>& work) const {
  try {
    work();
  } catch (const Error& error) {
    const std::string here = staging().string();
    if (!error.where().starts_with(here)) throw;
    throw Error(error.code(), temporary_.target().string() + error.where().substr(here.size()),
                "{}", error.message());
  }
}

void OutputFolder::commit(const std::vector<std::string>& replaced) {
  const fs::path& target = temporary_.target();
  try {
    sync_below(staging());
    if (path_exists(target)) {
      if (::renameat2(AT_FDCWD, staging().c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) ==
          0) {
        sync_folder(folder_of(target));
        return keep_others(staging(), target, replaced);  // what stood there goes with staging
      }
      keep_others(target, staging(), replaced);
      const Temporary before(target, Temporary::Kind::kFolder);
      fs::rename(target, before.path() / "before");
    }
  } catch (const fs::filesystem_error& error) {
    throw Error(write_error(error.code().value()), target.string(), "cannot be replaced: {}",
                error.code().message());
  }
  temporary_.take_place();
}

}  // namespace halftone
