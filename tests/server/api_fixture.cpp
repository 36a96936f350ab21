#include "tests/server/api_fixture.h"

#include "halftone/io/png.h"

namespace halftone::test {

using nlohmann::json;

void ApiTest::start(const std::function<void(ServerOptions&)>& edit) {
  server_.reset();
  ServerOptions options;
  options.port = 0;
  options.data = dir_ / "data";
  options.models = {kEmoji};
  options.log.file = (dir_ / "log").string();
  options.grace = 0;
  if (edit) edit(options);
  server_ = std::make_unique<Server>(engine_, options);
}

HttpReply ApiTest::get(const std::string& target, const HttpHeaders& headers) const {
  return client().send("GET", target, "", headers);
}

HttpReply ApiTest::post(const std::string& target, const json& body, HttpHeaders headers) const {
  if (body.is_null()) return client().send("POST", target, "", headers);
  headers.emplace_back("Content-Type", "application/json");
  return client().send("POST", target, body.dump(), headers);
}

HttpReply ApiTest::put(const std::string& target, const std::string& bytes) const {
  return client().send("PUT", target, bytes);
}

HttpReply ApiTest::remove(const std::string& target) const {
  return client().send("DELETE", target);
}

std::string ApiTest::submit(const std::string& target, const json& body) const {
  const HttpReply reply = post(target, body);
  EXPECT_EQ(reply.status, 202) << reply.body;
  return reply.status == 202 ? reply.json().value("id", "") : "";
}

std::string ApiTest::submit_picture(const json& more) const {
  json body = {{"prompt", "a cat"}, {"size", "32x32"}, {"steps", 2}, {"seed", 7}};
  body.update(more);
  return submit("/api/generate", body);
}

json ApiTest::job(const std::string& id) const { return get("/api/jobs/" + id).json(); }

std::vector<SseEvent> ApiTest::events(const std::string& id, int64_t after) const {
  const HttpReply reply = get("/api/jobs/" + id + "/events?after=" + std::to_string(after));
  return parse_events(reply.body);
}

json ApiTest::ended(const std::string& id) const {
  events(id);
  return job(id);
}

json ApiTest::cancel(const std::string& id) const {
  EXPECT_EQ(post("/api/jobs/" + id + "/cancel").status, 202);
  return ended(id);
}

json ApiTest::wait_for(const std::string& id, const std::string& type, int nth) const {
  EventReader reader(server_->port(), "/api/jobs/" + id + "/events");
  while (const auto event = reader.next()) {
    if (event->type == type && --nth == 0) return event->data;
  }
  return nullptr;
}

std::string ApiTest::some_png(int size, uint8_t shade) {
  const auto pixels = static_cast<size_t>(size * size * 3);
  return encode_png(PngImage{size, size, std::vector<uint8_t>(pixels, shade), {}});
}

void ApiTest::make_dataset(const std::string& name, int pictures) const {
  EXPECT_EQ(post("/api/datasets", {{"name", name}}).status, 201);
  for (int i = 0; i < pictures; ++i) {
    const std::string file = "/api/datasets/" + name + "/files/" + std::to_string(i);
    EXPECT_EQ(put(file + ".png", some_png(32, static_cast<uint8_t>(60 * i))).status, 201);
    EXPECT_EQ(put(file + ".txt", "a square").status, 201);
  }
}

json endless() { return {{"size", "256x256"}, {"steps", 200}, {"count", 64}, {"previews", false}}; }

json small_training(const std::string& name, int steps) {
  return {{"dataset", "set"}, {"name", name}, {"steps", steps},  {"batch", 1},
          {"resolution", 32}, {"rank", 2},    {"lr", 0.01},      {"save_every", 2},
          {"seed", 3},        {"warmup", 0},  {"compile", "off"}};
}

}  // namespace halftone::test
