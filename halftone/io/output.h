// Where results go. Files and folders are made under a temporary name beside the final one, and
// stand under the final name only when they are complete and on the disk. A temporary that a killed
// run left behind is removed by the next run with the same output; one that is still being written
// is locked and stays.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace halftone {

// Errors that can be known before any work: a folder that is missing or read-only, a folder where
// a file should go. Nothing is made.
void check_output_file(const std::filesystem::path& path);
// The same for a folder; one that is there already must be empty or hold `marker`, a file that
// every folder of its kind has.
void check_output_folder(const std::filesystem::path& path, const std::string& marker);
// Outputs by the names of their options: no two may be the same file. Empty ones do not count.
void check_distinct_outputs(
    std::initializer_list<std::pair<std::string, std::filesystem::path>> outputs);

// None of these outputs may be one of the inputs, nor replace a file in a folder that is one.
void check_not_inputs(std::initializer_list<std::filesystem::path> outputs,
                      const std::vector<std::filesystem::path>& inputs);

// A name beside `target` that no one else uses, locked while this lives and removed at its end.
class Temporary {
 public:
  enum class Kind { kFile, kFolder };
  Temporary(const std::filesystem::path& target, Kind kind);
  ~Temporary();
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  const std::filesystem::path& target() const { return target_; }
  const std::filesystem::path& path() const { return path_; }
  int fd() const { return fd_; }
  // Now it is the target.
  void take_place();

 private:
  std::filesystem::path target_, path_;
  int fd_ = -1;
};

// Whether anyone is writing something into this folder, which need not be there.
bool is_being_written_to(const std::filesystem::path& folder);

class OutputFile {
 public:
  enum class Access { kSequential, kRandom };
  // With sequential access the output may also be a pipe or a device, which is written in place,
  // or "-", standard output. A link is followed.
  explicit OutputFile(const std::filesystem::path& path, Access access = Access::kSequential);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> bytes);  // after what was written so far
  void write_at(int64_t offset, std::span<const std::byte> bytes);
  void reserve(int64_t bytes);  // an Error where the disk has no room, if that can be known
  void commit();

 private:
  [[noreturn]] void fail(const std::string& action, int error) const;

  std::string name_;
  int fd_ = -1;
  int64_t written_ = 0;
  bool in_place_ = false, owns_fd_ = false;
  std::unique_ptr<Temporary> temporary_;
};

// A whole file at once.
void write_file(const std::filesystem::path& path, std::string_view text);

class OutputFolder {
 public:
  explicit OutputFolder(const std::filesystem::path& path)
      : temporary_(path, Temporary::Kind::kFolder) {}
  const std::filesystem::path& staging() const { return temporary_.path(); }
  // Runs `work`; its Errors name files as they will be called.
  void write(const std::function<void()>& work) const;
  // Syncs everything below, then replaces what stood there. Files of that which are neither in the
  // new one nor below one of its `replaced` sub-folders are someone's, and are kept.
  void commit(const std::vector<std::string>& replaced);

 private:
  Temporary temporary_;
};

}  // namespace halftone
