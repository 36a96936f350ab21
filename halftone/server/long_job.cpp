#include "halftone/server/long_job.h"

#include <fstream>
#include <iterator>

#include "halftone/base/error.h"
#include "halftone/server/api_error.h"
#include "halftone/server/clock.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

std::string read_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file) throw Error(ErrorCode::kIo, path.string(), "cannot be read");
  return bytes;
}

}  // namespace

DataFolders::DataFolders(const fs::path& root_)
    : root(fs::absolute(root_).lexically_normal()),
      models(root / "models"),
      loras(root / "loras"),
      datasets(root / "datasets"),
      runs(root / "runs"),
      cache(root / "cache") {
  for (const fs::path& folder : {root, models, loras, datasets, runs, cache}) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) throw Error(ErrorCode::kIo, "data", "'{}': {}", folder.string(), error.message());
  }
}

LongJob::LongJob(const With& with, StoredJob stored)
    : with_(with),
      stored_(std::move(stored)),
      request_(nlohmann::json::parse(stored_.request, nullptr, false)),
      outbox_(with_.store, with_.log) {}

bool LongJob::late() const { return stored_.deadline > 0 && wall_seconds() > stored_.deadline; }

bool LongJob::ended() const { return cancelled_ || given_back_ || late(); }

bool LongJob::put(JobChange change) {
  put_again();
  note_lost(outbox_.put(std::move(change)));
  return outbox_.empty();
}

bool LongJob::put_again() {
  if (!outbox_.empty()) note_lost(outbox_.put_again());
  return outbox_.empty();
}

void LongJob::note_lost(const std::vector<std::string>& lost) {
  if (lost.empty() || given_back_.exchange(true)) return;
  with_.log.warn("another server has this job", {{"job", stored_.id}});
}

void LongJob::tell(const std::string& type, const ordered_json& fields) {
  ordered_json data = {{"job", stored_.id}};
  data.update(fields);
  JobChange change;
  change.job = stored_.id;
  change.events.emplace_back(type, dump(data));
  put(std::move(change));
}

void LongJob::tell_progress(const ordered_json& progress, bool important) {
  constexpr double kEvery = 0.1;
  const double now = steady_seconds();
  if (!important && now - told_ < kEvery) return;
  told_ = now;
  ordered_json data = {{"job", stored_.id}};
  data.update(progress);
  JobChange change;
  change.job = stored_.id;
  change.progress = dump(progress);
  change.events.emplace_back("progress", dump(data));
  put(std::move(change));
}

void LongJob::add_file(const std::string& name, const std::string& type, const fs::path& path,
                       const ordered_json& details) {
  StoredFile file;
  file.name = name;
  file.type = type;
  file.path = fs::absolute(path).lexically_relative(with_.folders.root).string();
  std::error_code ignored;
  file.size = static_cast<int64_t>(fs::file_size(path, ignored));
  file.details = dump(details);
  if (with_.store.is_shared() && file.size <= kMostSharedBytes) file.bytes = read_bytes(path);
  ordered_json result = {{"name", name}, {"type", type}};
  result.update(details);
  result["url"] = fmt::format("/api/jobs/{}/files/{}", stored_.id, name);
  result["bytes"] = file.size;
  JobChange change;
  change.job = stored_.id;
  change.files.push_back(std::move(file));
  change.events.emplace_back("result", dump(ordered_json{{"job", stored_.id}, {"result", result}}));
  put(std::move(change));
}

void LongJob::add_fallbacks(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    tell("fallback", {{"message", without_paths(line)}});
  }
}

std::string LongJob::without_paths(const std::string& message) const {
  return named_paths(message, folder_names());
}

FolderNames LongJob::folder_names() const {
  FolderNames names;
  const auto add = [&](const fs::path& folder, const std::string& name) {
    if (!folder.empty()) names.emplace_back(fs::absolute(folder).lexically_normal(), name);
  };
  add(with_.folders.run(stored_.id), "");
  if (request_.is_object() && request_.contains("dataset")) {
    try {
      const std::string dataset = request_["dataset"];
      add(with_.datasets.folder(dataset), dataset);
    } catch (const ApiError&) {  // it has gone
    }
  }
  for (const auto& model : with_.shelf.models()) {
    add(model->path, model->id);
    add(model->base, model->base.filename());
  }
  for (const fs::path& folder : with_.shelf.options().loras) add(folder, "");
  add(with_.folders.cache, "cache");
  add(with_.folders.root, "");
  return names;
}

}  // namespace halftone
