// Work that takes minutes or days, as the store sees it: training, quantizing, comparing. Each kind
// is a function in a file of its own.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "halftone/engine/choice_json.h"
#include "halftone/engine/engine.h"
#include "halftone/server/datasets.h"
#include "halftone/server/names.h"
#include "halftone/server/outbox.h"
#include "halftone/server/shelf.h"
#include "halftone/server/store.h"

namespace halftone {

// The server's folders.
struct DataFolders {
  explicit DataFolders(const std::filesystem::path& root);  // makes what is missing

  std::filesystem::path root, models, loras, datasets, runs, cache;
  std::filesystem::path run(const std::string& job) const { return runs / job; }
};

// One such job while it runs: what it may use, and how it tells what happens.
class LongJob {
 public:
  struct With {
    Engine& engine;
    Shelf& shelf;
    Store& store;
    Datasets& datasets;
    const DataFolders& folders;
    Log& log;
  };
  LongJob(const With& with, StoredJob stored);

  const With& with() const { return with_; }
  const StoredJob& stored() const { return stored_; }
  const nlohmann::json& request() const { return request_; }

  // Whether it is to end: someone has cancelled it, its time is over, or the server stops.
  bool ended() const;
  void cancel() { cancelled_ = true; }
  void give_back() { given_back_ = true; }
  bool cancelled() const { return cancelled_; }
  bool given_back() const { return given_back_; }
  bool late() const;

  // {"job": ..., and these}
  void tell(const std::string& type, const nlohmann::ordered_json& fields);
  // The same as an event and as the job's progress; not more often than ten times a second, unless
  // it is `important`.
  void tell_progress(const nlohmann::ordered_json& progress, bool important = false);
  // A result that lies below the data folder; `details` begins with its media. Where other servers
  // share the store, it is kept there too, unless it is larger than this.
  static constexpr int64_t kMostSharedBytes = int64_t{128} << 20;
  void add_file(const std::string& name, const std::string& type, const std::filesystem::path& path,
                const nlohmann::ordered_json& details);
  void add_fallbacks(const std::vector<std::string>& lines);
  // Everything of this job is said through these, so that nothing overtakes: where the store cannot
  // take it now, it waits for a later call. False: something waits.
  bool put(JobChange change);
  bool put_again();
  // A message with the names of things in place of where they lie on this machine.
  std::string without_paths(const std::string& message) const;
  FolderNames folder_names() const;

 private:
  void note_lost(const std::vector<std::string>& lost);

  With with_;
  StoredJob stored_;
  nlohmann::json request_;
  std::atomic<bool> cancelled_{false}, given_back_{false};
  Outbox outbox_;
  double told_ = 0;
};

// What is worth knowing in the end. Errors as everywhere; what is ended throws Error{kCancelled}.
// `can_resume` becomes true as soon as a later attempt would go on from what is there.
nlohmann::ordered_json run_train_job(LongJob& job, bool& can_resume);
nlohmann::ordered_json run_quantize_job(LongJob& job);
nlohmann::ordered_json run_compare_job(LongJob& job);

// A "train" job of a request's body: everything that can be known before is checked.
struct RequestSchemas;
NewJob train_job(const RequestSchemas& schemas, Shelf& shelf, const Datasets& datasets,
                 const DataFolders& folders, const nlohmann::json& body);

}  // namespace halftone
