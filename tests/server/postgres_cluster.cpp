#include "tests/server/postgres_cluster.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pwd.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "halftone/base/error.h"
#include "halftone/server/postgres_connection.h"

namespace halftone::test {
namespace {

namespace fs = std::filesystem;

// Where Debian puts them: the newest version.
std::string find_programs() {
  std::vector<std::string> found;
  std::error_code failed;
  for (auto it = fs::directory_iterator("/usr/lib/postgresql", failed);
       !failed && it != fs::directory_iterator(); it.increment(failed)) {
    const fs::path bin = it->path() / "bin";
    if (fs::exists(bin / "initdb") && fs::exists(bin / "postgres")) found.push_back(bin.string());
  }
  std::sort(found.begin(), found.end());
  return found.empty() ? "" : found.back();
}

// PostgreSQL refuses to run as root.
const passwd* other_user() {
  if (::getuid() != 0) return nullptr;
  const passwd* user = ::getpwnam("postgres");
  return user != nullptr ? user : ::getpwnam("nobody");
}

// Starts a program in `folder`, with what it says in the file `log` there.
pid_t start_program(const std::vector<std::string>& command, const std::string& folder) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const passwd* const user = other_user();
  const uid_t uid = user == nullptr ? ::getuid() : user->pw_uid;
  const gid_t gid = user == nullptr ? ::getgid() : user->pw_gid;
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child != 0) return child;
  // Between fork and exec only what is safe beside other threads.
  if (user != nullptr && (::setgid(gid) != 0 || ::setuid(uid) != 0)) ::_exit(126);
  ::prctl(PR_SET_PDEATHSIG, SIGINT);  // a fast shutdown; after setuid, which would undo it
  if (::getppid() != parent || ::chdir(folder.c_str()) != 0) ::_exit(126);
  const int log = ::open("log", O_WRONLY | O_CREAT | O_APPEND, 0644);
  ::dup2(log, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
  ::execv(arguments[0], arguments.data());
  ::_exit(127);
}

}  // namespace

std::unique_ptr<PostgresCluster> PostgresCluster::start() {
  const std::string programs = find_programs();
  if (programs.empty()) return nullptr;
  return std::unique_ptr<PostgresCluster>(new PostgresCluster(programs));
}

PostgresCluster::PostgresCluster(std::string programs) : programs_(std::move(programs)) {
  const std::string folder = folder_.path().string();
  if (const passwd* user = other_user();
      user != nullptr && ::chown(folder.c_str(), user->pw_uid, user->pw_gid) != 0) {
    throw std::runtime_error("chown " + folder);
  }
  const pid_t child =
      start_program({programs_ + "/initdb", "-D", folder + "/data", "-U", "halftone", "-A", "trust",
                     "-E", "UTF8", "--no-locale", "--no-sync"},
                    folder);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (status != 0) throw std::runtime_error("initdb: " + read_file(folder_ / "log"));
  launch();
}

PostgresCluster::~PostgresCluster() { stop(); }

void PostgresCluster::launch() {
  const std::string folder = folder_.path().string();
  // Not synced: what is tested is the store, and not the disk.
  server_ = start_program({programs_ + "/postgres", "-D", folder + "/data", "-k", folder, "-c",
                           "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=60"},
                          folder);
  for (int i = 0; i < 600; ++i) {
    try {
      postgres::Connection(url("")).run_script("SELECT 1");
      return;
    } catch (const Error&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
  stop();
  throw std::runtime_error("postgres does not start: " + read_file(folder_ / "log"));
}

void PostgresCluster::stop() {
  if (server_ <= 0) return;
  ::kill(server_, SIGINT);
  ::waitpid(server_, nullptr, 0);
  server_ = -1;
}

void PostgresCluster::restart() {
  stop();
  launch();
}

std::string PostgresCluster::url(const std::string& schema) const {
  const std::string base =
      fmt::format("postgresql:///postgres?host={}&user=halftone", folder_.path().string());
  if (schema.empty()) return base;
  postgres::Connection(base).run_script("CREATE SCHEMA IF NOT EXISTS " + schema);
  return fmt::format("{}&options=-csearch_path%3D{}", base, schema);
}

}  // namespace halftone::test
