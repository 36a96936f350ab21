// What happens to a server that is looked after: backups, a full disk, its end.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <map>
#include <thread>

#include "halftone/io/png.h"
#include "tests/server/server_process.h"
#include "tests/support/temp_dir.h"

namespace halftone {
namespace {

using nlohmann::json;
using test::ServerProcess;
using test::TempDir;
namespace fs = std::filesystem;

json picture_body(int seed, int count = 1, int steps = 2) {
  return {{"prompt", "a cat"}, {"size", "32x32"}, {"steps", steps},
          {"seed", seed},      {"count", count},  {"previews", false}};
}

std::string square_png(uint8_t shade, int size = 32) {
  const auto pixels = static_cast<size_t>(size) * static_cast<size_t>(size) * 3;
  return encode_png(PngImage{size, size, std::vector<uint8_t>(pixels, shade), {}});
}

// The bytes of all results, by their URLs.
std::map<std::string, std::string> results_of(const ServerProcess& server,
                                              const std::vector<std::string>& jobs) {
  std::map<std::string, std::string> found;
  for (const std::string& id : jobs) {
    const json job = server.job(id);
    EXPECT_EQ(job.value("state", ""), "done") << job;
    for (const json& result : job.value("results", json::array())) {
      const test::HttpReply reply = server.get(result["url"]);
      EXPECT_EQ(reply.status, 200) << result;
      found[result["url"]] = reply.body;
    }
  }
  return found;
}

TEST(Operation, ABackupMadeWhileItRunsIsRestored) {
  const TempDir dir;
  ServerProcess server(dir / "data");
  ASSERT_EQ(server.post("/api/datasets", {{"name", "set"}}).status, 201);
  ASSERT_EQ(server.put("/api/datasets/set/files/a.png", square_png(80)).status, 201);
  ASSERT_EQ(server.put("/api/datasets/set/files/a.txt", "a square").status, 201);
  std::vector<std::string> done;
  for (int i = 0; i < 3; ++i) done.push_back(server.submit("/api/generate", picture_body(i, 2)));
  done.push_back(server.submit("/api/train", {{"dataset", "set"},
                                              {"name", "style"},
                                              {"steps", 2},
                                              {"batch", 1},
                                              {"resolution", 32},
                                              {"rank", 2},
                                              {"lr", 0.01},
                                              {"compile", "off"}}));
  for (const std::string& id : done) ASSERT_EQ(server.ended(id)["state"], "done");
  const auto expected = results_of(server, done);
  ASSERT_GE(expected.size(), 8u);
  const std::string running = server.submit("/api/generate", picture_body(9, 64, 200));
  for (int i = 0; i < 500 && server.job(running)["state"] != "running"; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }

  fs::create_directory(dir / "restored");
  const std::string copy = (dir / "restored/halftone.db").string();
  const test::ProgramResult made =
      test::run_halftone({"backup", "--data", (dir / "data").string(), "-o", copy});
  EXPECT_EQ(made.status, 0) << made.output;
  // The folders beside it are plain files.
  for (const char* folder : {"loras", "models", "datasets", "runs"}) {
    fs::copy(dir / "data" / folder, dir / "restored" / folder, fs::copy_options::recursive);
  }
  const std::string later = server.submit("/api/generate", picture_body(10));
  server.end(SIGKILL);

  const ServerProcess restored(dir / "restored");
  EXPECT_EQ(results_of(restored, done), expected);
  EXPECT_EQ(restored.get("/api/jobs/" + later).status, 404) << "it came after the copy";
  EXPECT_EQ(restored.get("/api/jobs/" + done[0] + "/events").status, 200);
  EXPECT_EQ(restored.get("/api/datasets/set/files/a.png").body, square_png(80));
  const std::string state = restored.job(running)["state"];
  EXPECT_TRUE(state == "queued" || state == "running") << "what ran then is begun again: " << state;
  EXPECT_EQ(restored.post("/api/jobs/" + running + "/cancel", nullptr).status, 202);
  EXPECT_EQ(restored.ended(running)["state"], "cancelled");
  json body = picture_body(1);
  body["loras"] = {{{"name", "style"}}};
  EXPECT_EQ(restored.ended(restored.submit("/api/generate", body))["state"], "done");
}

// A file system of so many bytes, until the end of the test.
class SmallDisk {
 public:
  SmallDisk(fs::path at, int64_t bytes) : at_(std::move(at)) {
    fs::create_directories(at_);
    const std::string options = "size=" + std::to_string(bytes);
    mounted_ = ::mount("halftone-test", at_.c_str(), "tmpfs", 0, options.c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(at_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool mounted() const { return mounted_; }
  void fill() const {
    const int fd =
        ::open((at_ / "filler").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    for (size_t size = 1 << 16; size > 0;) {
      const std::string bytes(size, 'x');
      if (::write(fd, bytes.data(), bytes.size()) <= 0) size /= 2;
    }
    ::close(fd);
  }
  void make_room() const { fs::remove(at_ / "filler"); }

 private:
  fs::path at_;
  bool mounted_ = false;
};

TEST(Operation, AFullDiskLosesNothing) {
  const TempDir dir;
  const SmallDisk disk(dir / "data", 24 << 20);
  if (!disk.mounted()) GTEST_SKIP() << "a file system can be mounted by root alone";
  const ServerProcess server(dir / "data");
  ASSERT_EQ(server.post("/api/datasets", {{"name", "set"}}).status, 201);
  const std::string file = "/api/datasets/set/files/a.png", old = square_png(80);
  ASSERT_EQ(server.put(file, old).status, 201);
  const std::string before = server.submit("/api/generate", picture_body(0));
  ASSERT_EQ(server.ended(before)["state"], "done");
  const auto kept = results_of(server, {before});

  // Some of its pictures come while there is no room for them.
  const std::string under_way = server.submit("/api/generate", picture_body(1, 16, 8));
  for (int i = 0; i < 1000 && server.job(under_way)["results"].empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  disk.fill();
  std::vector<std::string> taken;
  const auto is_507 = [](const test::HttpReply& reply) {
    const json error = reply.json().value("error", json::object());
    return reply.status == 507 && error.value("code", "") == "disk_full" &&
           error.contains("field") && !error.value("message", "").empty();
  };
  // What SQLite's log has room for is still taken.
  test::HttpReply refused;
  for (int i = 0; i < 200; ++i) {
    disk.fill();
    refused = server.post("/api/generate", picture_body(2));
    if (refused.status != 202) break;
    taken.push_back(refused.json()["id"]);
  }
  EXPECT_TRUE(is_507(refused)) << refused.status << " " << refused.body;
  disk.fill();
  const test::HttpReply upload = server.put(file, square_png(99, 512) + std::string(1 << 20, 'x'));
  EXPECT_TRUE(is_507(upload)) << upload.status << " " << upload.body;
  EXPECT_EQ(server.get(file).body, old);
  for (const auto& left : fs::directory_iterator(dir / "data/datasets/set")) {
    EXPECT_EQ(left.path().filename(), "a.png");
  }
  EXPECT_EQ(results_of(server, {before}), kept) << "reading needs no room";
  EXPECT_EQ(server.get("/healthz").status, 200);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));

  disk.make_room();
  const json job = server.ended(under_way);
  EXPECT_EQ(job["state"], "done") << job;
  EXPECT_EQ(job["results"].size(), 16u);
  taken.push_back(under_way);
  for (const std::string& id : taken) EXPECT_EQ(server.ended(id)["state"], "done");
  results_of(server, taken);
  EXPECT_EQ(server.put(file, square_png(99)).status, 204);
  EXPECT_EQ(server.job(before)["state"], "done");
}

TEST(Operation, ASignalEndsItInOrder) {
  const TempDir dir;
  ServerProcess server(dir / "data", {"--grace", "0"});
  const std::string id = server.submit("/api/generate", picture_body(1, 64, 200));
  test::HttpConnection stream(server.port());
  stream.send("GET /api/events?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n");
  std::string heard = stream.read_some();
  const int status = server.end(SIGTERM);
  EXPECT_TRUE(WIFEXITED(status)) << status;
  heard += stream.read_all();
  EXPECT_TRUE(heard.ends_with("\r\n0\r\n\r\n")) << heard;
  EXPECT_THAT(server.log(), testing::HasSubstr("stopped"));
  const ServerProcess again(dir / "data");
  EXPECT_EQ(again.post("/api/jobs/" + id + "/cancel", nullptr).status, 202);
  EXPECT_EQ(again.ended(id)["state"], "cancelled");
}

}  // namespace
}  // namespace halftone
