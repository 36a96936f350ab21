#include "halftone/training/apart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "halftone/base/files.h"
#include "halftone/training/checkpoints.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace halftone {
namespace {

using test::error_of;
using testing::HasSubstr;

TEST(Apart, WorksOnWhatIsThereAndSaysWhatWentWrong) {
  const test::TempDir dir;
  std::string text = "before";
  run_apart([&] {
    test::write_file(dir / "out.txt", text);
    text = "in a process of its own";
  });
  EXPECT_EQ(test::read_file(dir / "out.txt"), "before");
  EXPECT_EQ(text, "before");
  EXPECT_THAT(error_of([] {
                run_apart([] { throw Error(ErrorCode::kIo, "out.txt", "the disk is full"); });
              }),
              HasSubstr("out.txt: the disk is full"));
  EXPECT_THAT(error_of([] { run_apart([] { ::raise(SIGKILL); }); }), HasSubstr("has died"));
}

// As mpirun does it: the whole group of a process, while it saves. Whoever goes on waits for that.
TEST(Apart, IsFinishedWhereAllOfTheGroupIsKilled) {
  const test::TempDir dir;
  const pid_t child = ::fork();
  if (child == 0) {
    ::setpgid(0, 0);
    run_apart([&] {
      TrainedSoFar so_far;
      Checkpoints(dir / "run.safetensors", 1, true)
          .save(so_far, {}, [&](const std::filesystem::path& folder) {
            test::write_file(dir / "begun", "");
            ::usleep(400000);
            test::write_file(folder / "adapter.safetensors", "all of it");
          });
    });
    ::_exit(0);
  }
  while (!path_exists(dir / "begun")) ::usleep(1000);
  ::kill(-child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  const Checkpoints checkpoints(dir / "run.safetensors", 1, true);
  EXPECT_TRUE(checkpoints.list().empty());
  checkpoints.wait_for_others({});
  ASSERT_EQ(checkpoints.list().size(), 1u);
  EXPECT_EQ(test::read_file(checkpoints.list()[0].folder / "adapter.safetensors"), "all of it");
}

}  // namespace
}  // namespace halftone
