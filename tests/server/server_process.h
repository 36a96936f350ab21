// `halftone serve` as it is run: a process of its own, which can be killed. It ends with the test.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/server/http_client.h"

namespace halftone::test {

// What a program says on standard output, and how it ends, when it is run to its end.
struct ProgramResult {
  int status = -1;
  std::string output;
};
ProgramResult run_halftone(const std::vector<std::string>& arguments);

class ServerProcess {
 public:
  // On any free port, with the model that comes with the program; answers when this returns. Its
  // log goes to `data`.log.
  explicit ServerProcess(std::filesystem::path data, const std::vector<std::string>& more = {});
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  pid_t pid() const { return pid_; }
  uint16_t port() const { return port_; }
  const std::filesystem::path& data() const { return data_; }
  std::string log() const;
  // Sends a signal, and waits until it has ended: its status as wait() tells it.
  int end(int signal);

  HttpReply get(const std::string& target) const;
  HttpReply post(const std::string& target, const nlohmann::json& body) const;
  HttpReply put(const std::string& target, const std::string& bytes) const;
  nlohmann::json job(const std::string& id) const;
  // The id of a job that was taken; empty, and a failure, where it was not.
  std::string submit(const std::string& target, const nlohmann::json& body) const;
  // The job when it has ended, or as it is after a minute.
  nlohmann::json ended(const std::string& id) const;

 private:
  std::filesystem::path data_;
  pid_t pid_ = -1;
  uint16_t port_ = 0;
};

}  // namespace halftone::test
