// A server in this process, on a folder of its own, with the model that comes with the program, and
// what tests ask of it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "halftone/server/server.h"
#include "tests/server/http_client.h"
#include "tests/support/temp_dir.h"

namespace halftone::test {

inline const std::string kEmoji = HALFTONE_MODELS "/emoji";

class ApiTest : public testing::Test {
 protected:
  // Also again, on what the one before has left.
  void start(const std::function<void(ServerOptions&)>& edit = {});
  void stop() { server_.reset(); }

  HttpClient client() const { return HttpClient(server_->port()); }
  HttpReply get(const std::string& target, const HttpHeaders& headers = {}) const;
  HttpReply post(const std::string& target, const nlohmann::json& body = nullptr,
                 HttpHeaders headers = {}) const;
  HttpReply put(const std::string& target, const std::string& bytes) const;
  HttpReply remove(const std::string& target) const;

  // Taken with 202; its id.
  std::string submit(const std::string& target, const nlohmann::json& body) const;
  std::string submit_picture(const nlohmann::json& more = nlohmann::json::object()) const;
  nlohmann::json job(const std::string& id) const;
  nlohmann::json ended(const std::string& id) const;  // the job, as soon as it has
  nlohmann::json cancel(const std::string& id) const;
  // Waits for an event of this kind in a job, the `nth`; null where the job ends before.
  nlohmann::json wait_for(const std::string& id, const std::string& type, int nth = 1) const;
  std::vector<SseEvent> events(const std::string& id, int64_t after = 0) const;

  // A dataset of pictures with captions.
  void make_dataset(const std::string& name, int pictures = 3) const;
  static std::string some_png(int size = 32, uint8_t shade = 90);

  TempDir dir_;
  Engine engine_;
  std::unique_ptr<Server> server_;
};

// Work that lasts until someone ends it.
nlohmann::json endless();
// A small training for a dataset "set".
nlohmann::json small_training(const std::string& name, int steps);

// The error of a reply: {"error": {"code", "field", "message"}}.
MATCHER_P3(IsError, status, code, field, "") {
  const nlohmann::json body = arg.json();
  *result_listener << "status " << arg.status << ", " << arg.body;
  return arg.status == status && body.is_object() && body.contains("error") &&
         body["error"].value("code", "") == code && body["error"].value("field", "-") == field;
}

}  // namespace halftone::test
