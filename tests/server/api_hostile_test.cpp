// Requests that mean harm, or that mean nothing.
#include <thread>

#include "tests/server/api_fixture.h"

namespace halftone {
namespace {

using nlohmann::json;
using test::ApiTest;
using test::HttpReply;
using test::IsError;
using testing::HasSubstr;
using testing::Not;

class ApiHostile : public ApiTest {
 protected:
  void SetUp() override { start(); }

  int raw(const std::string& bytes) const {
    return test::parse_reply(client().send_raw(bytes)).status;
  }
  HttpReply with_type(const std::string& body, const std::string& type) const {
    return client().send("POST", "/api/generate", body, {{"Content-Type", type}});
  }
};

TEST_F(ApiHostile, WhatIsNoHttpIsRefused) {
  const std::string host = "Host: localhost\r\nConnection: close\r\n";
  const std::string post =
      "POST /api/generate HTTP/1.1\r\nContent-Type: application/json\r\n" + host;
  const std::string chunked = post + "Transfer-Encoding: chunked\r\n";
  const std::vector<std::pair<std::string, int>> cases = {
      {std::string("\x16\x03\x01\0\xff", 5) + std::string(300, '\0'), 400},
      {"GET /\r\n\r\n", 400},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
      {"GET /healthz HTTP/1.1\r\nHost : localhost\r\n\r\n", 400},
      {"GET /" + std::string(60000, 'a') + " HTTP/1.1\r\n" + host + "\r\n", 413},
      {"GET / HTTP/1.1\r\n" + host + "X: " + std::string(60000, 'a') + "\r\n\r\n", 413},
      {post + "\r\n", 400},
      {post + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ", 400},
      {post + "Content-Length: -1\r\n\r\n{}", 400},
      {post + "Content-Length: 99999999999999999999999\r\n\r\n{}", 400},
      {post + "Content-Length: 2000000\r\n\r\n{}", 413},
      {chunked + "Content-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400},
      {chunked + "\r\nzz\r\n{}\r\n0\r\n\r\n", 400},
      {chunked + "\r\nffffffffffffffffff\r\n{}\r\n0\r\n\r\n", 400},
      {chunked + "\r\n2\r\n{}\r\n0\r\n\r\n", 400},  // well-formed, and lacks the prompt
      {"GET http://localhost/healthz HTTP/1.1\r\n" + host + "\r\n", 400},
      {"OPTIONS * HTTP/1.1\r\n" + host + "\r\n", 400}};
  for (const auto& [bytes, status] : cases) EXPECT_EQ(raw(bytes), status) << bytes.substr(0, 100);
  EXPECT_EQ(get("/healthz").body, "ok\n");
}

TEST_F(ApiHostile, RequestsThatAreSentTogetherAreAnsweredInOrder) {
  std::string bytes;
  for (int i = 0; i < 20; ++i) {
    bytes += "GET " + std::string(i % 2 == 0 ? "/healthz" : "/nothing") +
             " HTTP/1.1\r\nHost: localhost\r\n" + (i == 19 ? "Connection: close\r\n" : "") + "\r\n";
  }
  std::string replies = client().send_raw(bytes);
  for (int i = 0; i < 20; ++i) {
    size_t taken = 0;
    EXPECT_EQ(test::parse_reply(replies, false, &taken).status, i % 2 == 0 ? 200 : 404) << i;
    replies.erase(0, taken);
  }
  EXPECT_EQ(replies, "");
}

// Those above the limit are closed, and that is told: once for a flood of them.
TEST_F(ApiHostile, ConnectionsAboveTheLimitAreCounted) {
  start([](ServerOptions& options) { options.most_connections = 4; });
  std::vector<std::unique_ptr<test::HttpConnection>> open;
  for (int i = 0; i < 4; ++i) {
    open.push_back(std::make_unique<test::HttpConnection>(server_->port()));
    open.back()->send("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_EQ(test::parse_reply(open.back()->read_some()).status, 200);
  }
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(test::HttpConnection(server_->port()).read_all(), "");
  }
  open.clear();
  HttpReply metrics;
  for (int i = 0; i < 500 && metrics.status != 200; ++i) {  // until the four are gone
    metrics = get("/metrics");
    if (metrics.status != 200) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const std::string name = "\nhalftone_connections_dropped_total ";
  const size_t at = metrics.body.find(name);
  ASSERT_NE(at, std::string::npos) << metrics.body;
  EXPECT_GE(std::atoi(metrics.body.c_str() + at + name.size()), 5);
  const std::string log = test::read_file(dir_ / "log");
  const size_t line = log.find("connections dropped  count=1  why=4 are open already");
  ASSERT_NE(line, std::string::npos) << log;
  EXPECT_EQ(log.find("connections dropped", line + 1), std::string::npos);
}

// A slow or silent client holds its own connection, and nothing else.
TEST_F(ApiHostile, ManyConnectionsLeaveRoomForOthers) {
  std::vector<std::unique_ptr<test::HttpConnection>> open;
  for (int i = 0; i < 300; ++i) {
    open.push_back(std::make_unique<test::HttpConnection>(server_->port()));
    open.back()->send("GET /healthz HTTP/1.1\r\nHost: loc");
  }
  EXPECT_EQ(get("/healthz").status, 200);
  EXPECT_EQ(ended(submit_picture())["state"], "done");
  open.front()->send("alhost\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(test::parse_reply(open.front()->read_all()).status, 200);
}

TEST_F(ApiHostile, PathsLeadNowhereElse) {
  make_dataset("set", 1);
  test::write_file(dir_ / "data/secret.png", some_png());
  for (const char* target :
       {"/..", "/%2e%2e", "//", "/studio/../../etc/passwd", "/studio/..%2f..%2fetc%2fpasswd",
        "/api/datasets/..", "/api/datasets/%2e%2e/files/secret.png", "/api/jobs/", "/api/jobs/%ff",
        "/api/jobs/x/files/..%2f..%2fhalftone.db", "/api/datasets/%2fetc/files/passwd", "/API/info",
        "/api/info/", "/api/jobs/'%3b--"}) {
    EXPECT_EQ(get(target).status, 404) << target;
  }
  for (const char* target : {"/%00", "/%", "/%4", "/%zz", "/healthz?%00=1", "/healthz?a=%f"}) {
    EXPECT_EQ(get(target).status, 400) << target;
  }
  for (const char* file : {"../secret.png", "%2e%2e/secret.png", "..%2fsecret.png", "/etc/passwd",
                           "../../secret.png", ".hidden.png", "a%ff.png"}) {
    const std::string target = std::string("/api/datasets/set/files/") + file;
    EXPECT_GE(get(target).status, 400) << file;
    EXPECT_GE(put(target, some_png()).status, 400) << file;
    EXPECT_GE(remove(target).status, 400) << file;
  }
  EXPECT_TRUE(std::filesystem::exists(dir_ / "data/secret.png"));
}

TEST_F(ApiHostile, QueriesAreChecked) {
  for (const char* query : {"limit=0", "limit=-1", "limit=201", "limit=1e1",
                            "limit=", "limit=99999999999999999999", "limit=+1"}) {
    EXPECT_THAT(get(std::string("/api/jobs?") + query), IsError(400, "invalid", "limit")) << query;
  }
  EXPECT_THAT(get("/api/jobs?state=odd"), IsError(400, "invalid", "state"));
  EXPECT_THAT(get("/api/events?after=-1"), IsError(400, "invalid", "after"));
  for (const char* last : {"-1", "x", "1e3", "0x10"}) {
    EXPECT_THAT(get("/api/events", {{"Last-Event-ID", last}}),
                IsError(400, "invalid", "Last-Event-ID"))
        << last;
  }
}

TEST_F(ApiHostile, MethodsThatMeanNothingHere) {
  for (const char* method : {"OPTIONS", "TRACE", "PATCH", "FOO", "get", "POST", "DELETE"}) {
    EXPECT_THAT(client().send(method, "/healthz"), IsError(405, "method_not_allowed", ""));
  }
  const HttpReply head = client().send("HEAD", "/openapi.json");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.header("content-length"), std::to_string(get("/openapi.json").body.size()));
  EXPECT_EQ(head.body, "");
}

TEST_F(ApiHostile, BodiesThatAreNoJsonAreRefused) {
  const std::string json_type = "application/json";
  for (const std::string body :
       {"", "{", "{\"prompt\": \"x\",}", "{\"prompt\": \"x\"} x", "// x\n{}", "\xEF\xBB\xBF{}",
        "{\"prompt\": \"x\", \"prompt\": \"y\"}", "{\"prompt\": \"\xff\"}",
        "{\"prompt\": \"\\ud800\"}", "{\"prompt\": NaN}",
        "{\"prompt\": \"x\", \"guidance\": 1e999}", "null", "[]", "\"x\"", "1"}) {
    EXPECT_THAT(with_type(body, json_type), IsError(400, "invalid", "")) << body;
  }
  EXPECT_THAT(with_type(std::string(100000, '['), json_type), IsError(400, "invalid", ""));
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "{\"a\":";
  EXPECT_THAT(with_type(deep, json_type), IsError(400, "invalid", ""));
  for (const char* type : {"", "text/plain", "application/x-www-form-urlencoded",
                           "multipart/form-data; boundary=x", "application/jsonx"}) {
    EXPECT_EQ(with_type("{\"prompt\": \"x\"}", type).status, 415) << type;
  }
  EXPECT_EQ(get("/api/jobs").json()["jobs"].size(), 0u) << "something was taken";
}

// A page of somebody else, in a browser that can reach the server.
TEST_F(ApiHostile, OtherSitesAreNotAnswered) {
  for (const char* host : {"evil.example", "evil.example:80", "localhost.evil.example", "[", ""}) {
    EXPECT_EQ(get("/api/info", {{"Host", host}}).status, 403) << host;
  }
  for (const char* host : {"localhost", "127.0.0.1:8080", "[::1]:1"}) {
    EXPECT_EQ(get("/api/info", {{"Host", host}}).status, 200) << host;
  }
  for (const char* origin : {"http://evil.example", "null", "http://localhost:1", "localhost",
                             "http://localhost.evil.example"}) {
    EXPECT_EQ(get("/api/info", {{"Origin", origin}}).status, 403) << origin;
    EXPECT_EQ(post("/api/generate", {{"prompt", "x"}}, {{"Origin", origin}}).status, 403) << origin;
  }
  EXPECT_EQ(get("/api/info", {{"Origin", "http://localhost"}}).status, 200);
  EXPECT_EQ(get("/api/jobs").json()["jobs"].size(), 0u) << "something was taken";
}

TEST_F(ApiHostile, MoreNamesCanBeAllowed) {
  start([](ServerOptions& options) { options.hosts = {"studio.example"}; });
  EXPECT_EQ(get("/api/info", {{"Host", "studio.example"}}).status, 200);
  EXPECT_EQ(get("/api/info", {{"Host", "other.example"}}).status, 403);
}

TEST_F(ApiHostile, AnswersHaveNoPathsOfThisMachine) {
  make_dataset("set", 1);
  const std::string file = "/api/datasets/set/files/0.png";
  const HttpReply below_a_file = put(file + "/x.png", some_png());
  EXPECT_GE(below_a_file.status, 400);
  EXPECT_LT(below_a_file.status, 500) << below_a_file.body;
  EXPECT_THAT(below_a_file.body, Not(HasSubstr(dir_.path().string())));
  for (const char* target : {"/api/info", "/api/models", "/api/loras", "/api/datasets",
                             "/api/datasets/set", "/metrics", "/openapi.json"}) {
    EXPECT_THAT(get(target).body, Not(HasSubstr(dir_.path().string()))) << target;
  }
}

}  // namespace
}  // namespace halftone
