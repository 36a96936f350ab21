// Outputs are complete or not there, and what a killed run leaves behind goes with the next one.
#include "halftone/io/output.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "halftone/io/png.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensors.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::read_file;
using testing::HasSubstr;

constexpr const char* kNone = "(no error)";

class Output : public testing::Test {
 protected:
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(dir_.path())) {
      found.push_back(entry.path().filename().string());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  using Names = std::vector<std::string>;
  test::TempDir dir_;
};

TEST_F(Output, AFileStandsUnderItsNameOnlyWhenItIsCommitted) {
  test::write_file(dir_ / "out", "before");
  {
    OutputFile file(dir_ / "out");
    file.write(std::as_bytes(std::span("after", 5)));
    EXPECT_EQ(read_file(dir_ / "out"), "before");
    EXPECT_EQ(names().size(), 2u);
  }
  EXPECT_EQ(names(), Names{"out"});
  EXPECT_EQ(read_file(dir_ / "out"), "before");
  write_file(dir_ / "out", "after");
  EXPECT_EQ(read_file(dir_ / "out"), "after");
  EXPECT_EQ(names(), Names{"out"});
}

TEST_F(Output, ALinkStaysAndWhatItPointsAtIsReplaced) {
  fs::create_directory(dir_ / "far");
  test::write_file(dir_ / "far/file", "before");
  fs::create_symlink("far/file", dir_ / "link");
  write_file(dir_ / "link", "after");
  EXPECT_TRUE(fs::is_symlink(dir_ / "link"));
  EXPECT_EQ(read_file(dir_ / "far/file"), "after");
  fs::create_symlink("far/new", dir_ / "dangling");
  write_file(dir_ / "dangling", "made");
  EXPECT_TRUE(fs::is_symlink(dir_ / "dangling"));
  EXPECT_EQ(read_file(dir_ / "far/new"), "made");
}

TEST_F(Output, PipesAndDevicesAreWrittenIntoAndStay) {
  ASSERT_EQ(::mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  const int reader = ::open((dir_ / "pipe").c_str(), O_RDONLY | O_NONBLOCK);
  const Tensor picture = test::f32_tensor({3, 2, 2}, test::gaussians(1, 12));
  write_png(dir_ / "pipe", picture, {});
  char bytes[4096];
  const ssize_t n = ::read(reader, bytes, sizeof bytes);
  ::close(reader);
  ASSERT_GT(n, 8);
  EXPECT_EQ(std::string(bytes + 1, 3), "PNG");
  EXPECT_TRUE(fs::is_fifo(dir_ / "pipe"));
  EXPECT_EQ(names(), Names{"pipe"});

  write_file("/dev/null", "text");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_THAT(error_of([] { write_file("/dev/full", "text"); }), HasSubstr("/dev/full: cannot"));
  EXPECT_EQ(write_error(ENOSPC), ErrorCode::kDiskFull);
  EXPECT_EQ(write_error(EACCES), ErrorCode::kIo);
  EXPECT_THAT(error_of([] { OutputFile file("/dev/null", OutputFile::Access::kRandom); }),
              HasSubstr("not a regular file"));
}

TEST_F(Output, WhatCannotBeWrittenIsKnownBefore) {
  fs::create_directory(dir_ / "folder");
  test::write_file(dir_ / "file", "");
  const auto problem = [&](const fs::path& path) {
    return error_of([&] { check_output_file(path); });
  };
  EXPECT_EQ(problem(dir_ / "new"), kNone);
  EXPECT_EQ(problem(dir_ / "file"), kNone);
  EXPECT_EQ(problem("/dev/null"), kNone);
  EXPECT_THAT(problem(dir_ / "missing/new"), HasSubstr("there is no folder"));
  EXPECT_THAT(problem(dir_ / "file/new"), HasSubstr("is no folder"));
  EXPECT_THAT(problem(dir_ / "folder"), HasSubstr("is a folder"));
  EXPECT_EQ(names(), (Names{"file", "folder"}));
  EXPECT_EQ(problem(dir_ / std::string(255, 'n')), kNone);
  write_file(dir_ / std::string(255, 'n'), "x");
  EXPECT_TRUE(fs::exists(dir_ / std::string(255, 'n')));
  EXPECT_THAT(problem(dir_ / std::string(256, 'n')), HasSubstr("too long"));
  EXPECT_THAT(error_of([&] {
                check_distinct_outputs({{"--a", dir_ / "x"}, {"--b", dir_ / "folder/../x"}});
              }),
              HasSubstr("--b: would be written to the same file as --a"));
  EXPECT_EQ(error_of([&] { check_distinct_outputs({{"--a", dir_ / "x"}, {"--b", ""}}); }), kNone);
}

TEST_F(Output, WhatAKilledRunLeftIsRemovedAndWhatIsInUseIsNot) {
  const pid_t child = ::fork();
  if (child == 0) {
    const OutputFile file(dir_ / "out");
    const Temporary folder(dir_ / "folder", Temporary::Kind::kFolder);
    test::write_file(folder.path() / "part", "x");
    ::_exit(0);  // without a destructor, as kill does
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(names().size(), 2u);
  test::write_file(dir_ / "out.mine.tmp", "");
  test::write_file(dir_ / "out.halftone-abc.tmp", "");
  const OutputFile one(dir_ / "out");
  EXPECT_EQ(names().size(), 4u);  // the file's is gone, the folder's is another output's
  const OutputFile two(dir_ / "out");
  EXPECT_EQ(names().size(), 5u);  // of two that are being written both stay
  {
    const Temporary folder(dir_ / "folder", Temporary::Kind::kFolder);
  }
  EXPECT_EQ(names().size(), 4u);
}

TEST_F(Output, ErrorsInAFolderNameFilesAsTheyWillBeCalled) {
  OutputFolder folder(dir_ / "out");
  EXPECT_EQ(error_of([&] {
              folder.write([&] { write_file(folder.staging() / "missing/x", ""); });
            }).find((dir_ / "out/missing/x").string()),
            0u);
}

TEST_F(Output, AFolderIsReplacedAsAWhole) {
  const auto make = [&](const std::string& text) {
    OutputFolder folder(dir_ / "out/");
    fs::create_directory(folder.staging() / "part");
    test::write_file(folder.staging() / "marker", text);
    test::write_file(folder.staging() / ("part/" + text), text);
    EXPECT_EQ(fs::exists(dir_ / "out"), text != "one");
    folder.commit({"part"});
  };
  make("one");
  test::write_file(dir_ / "out/notes", "someone's");
  make("two");
  EXPECT_EQ(read_file(dir_ / "out/marker"), "two");
  EXPECT_EQ(read_file(dir_ / "out/notes"), "someone's");
  EXPECT_TRUE(fs::exists(dir_ / "out/part/two"));
  EXPECT_FALSE(fs::exists(dir_ / "out/part/one"));
  EXPECT_EQ(names(), Names{"out"});

  EXPECT_EQ(error_of([&] { check_output_folder(dir_ / "out", "marker"); }), kNone);
  EXPECT_THAT(error_of([&] { check_output_folder(dir_ / "out", "other"); }),
              HasSubstr("with other things in it"));
  EXPECT_THAT(error_of([&] { check_output_folder(dir_ / "out/marker", "x"); }),
              HasSubstr("is no folder"));
}

}  // namespace
}  // namespace halftone
