#include "tests/server/server_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>
#include <thread>

#include "tests/support/temp_dir.h"

namespace halftone::test {
namespace {

using nlohmann::json;

// Starts the program; `output` becomes what its standard output is read from.
pid_t start_halftone(const std::vector<std::string>& arguments, int& output) {
  std::vector<char*> words = {const_cast<char*>(HALFTONE_PROGRAM)};
  for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(126);
    ::dup2(ends[1], STDOUT_FILENO);
    ::execv(words[0], words.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  output = ends[0];
  return child;
}

}  // namespace

ProgramResult run_halftone(const std::vector<std::string>& arguments) {
  ProgramResult result;
  int output = -1;
  const pid_t child = start_halftone(arguments, output);
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(output, buffer, sizeof buffer)) > 0;) {
    result.output.append(buffer, static_cast<size_t>(got));
  }
  ::close(output);
  ::waitpid(child, &result.status, 0);
  return result;
}

ServerProcess::ServerProcess(std::filesystem::path data, const std::vector<std::string>& more)
    : data_(std::move(data)) {
  std::vector<std::string> arguments = {"serve",
                                        "--port",
                                        "0",
                                        "--data",
                                        data_.string(),
                                        "--device",
                                        "cpu",
                                        "--models",
                                        HALFTONE_MODELS "/emoji",
                                        "--log-file",
                                        data_.string() + ".log"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  int output = -1;
  pid_ = start_halftone(arguments, output);
  std::string said;  // "halftone is at http://127.0.0.1:PORT"
  char c = 0;
  while (::read(output, &c, 1) == 1 && c != '\n') said += c;
  ::close(output);
  const size_t colon = said.rfind(':');
  if (colon != std::string::npos) {
    port_ = static_cast<uint16_t>(std::atoi(said.c_str() + colon + 1));
  }
  if (port_ == 0) {
    end(SIGKILL);
    throw std::runtime_error("halftone serve does not start: " + said + log());
  }
}

ServerProcess::~ServerProcess() { end(SIGKILL); }

std::string ServerProcess::log() const { return read_file(data_.string() + ".log"); }

int ServerProcess::end(int signal) {
  int status = 0;
  if (pid_ <= 0) return status;
  ::kill(pid_, signal);
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return status;
}

HttpReply ServerProcess::get(const std::string& target) const {
  return HttpClient(port_).send("GET", target);
}

HttpReply ServerProcess::post(const std::string& target, const json& body) const {
  return HttpClient(port_).send("POST", target, body.dump(),
                                {{"Content-Type", "application/json"}});
}

HttpReply ServerProcess::put(const std::string& target, const std::string& bytes) const {
  return HttpClient(port_).send("PUT", target, bytes);
}

json ServerProcess::job(const std::string& id) const {
  const json job = get("/api/jobs/" + id).json();
  return job.is_object() ? job : json::object();
}

std::string ServerProcess::submit(const std::string& target, const json& body) const {
  const HttpReply reply = post(target, body);
  EXPECT_EQ(reply.status, 202) << reply.body;
  return reply.status == 202 ? reply.json().value("id", "") : "";
}

json ServerProcess::ended(const std::string& id) const {
  json now;
  for (int i = 0; i < 1200; ++i) {
    now = job(id);
    const std::string state = now.value("state", "");
    if (state != "queued" && state != "running") break;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return now;
}

}  // namespace halftone::test
