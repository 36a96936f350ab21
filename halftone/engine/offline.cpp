#include "halftone/engine/offline.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "halftone/base/error.h"
#include "halftone/engine/offline_index.h"
#include "halftone/engine/offline_rows.h"
#include "halftone/engine/offline_shares.h"
#include "halftone/io/model_hash.h"
#include "halftone/io/output.h"
#include "halftone/runtime/devices.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// A file as it is now: another one in its place is another state.
struct FileState {
  uint64_t inode = 0;
  int64_t seconds = 0, nanoseconds = 0;
  bool operator==(const FileState&) const = default;

  static FileState of(const fs::path& file) {
    struct stat now{};
    if (::stat(file.c_str(), &now) != 0) return {};
    return {now.st_ino, now.st_mtim.tv_sec, now.st_mtim.tv_nsec};
  }
};

class OfflineRun {
 public:
  OfflineRun(Engine& engine, const OfflineOptions& options, Collective& processes,
             const ProgressFn& progress)
      : engine_(engine), options_(options), processes_(processes), progress_(progress) {
    stop_ = [this] { return options_.model.cancelled && options_.model.cancelled(); };
  }

  OfflineResult run() {
    const auto start = Clock::now();
    try {
      if (!agree(attempt([&] { prepare(); }))) return std::move(result_);
      std::optional<Error> own = attempt([&] { find_work(); });
      if (!agree(own)) return std::move(result_);
      own = attempt([&] { work(); });
      finish(own);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kCancelled) end_early();
      throw;
    }
    result_.total = std::chrono::duration<double>(Clock::now() - start).count();
    return std::move(result_);
  }

 private:
  // What goes wrong in one process is told to all before any of them ends: whoever left alone would
  // take the others with it.
  template <class Work>
  static std::optional<Error> attempt(const Work& work) {
    try {
      work();
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kCancelled) throw;
      return error;
    } catch (const std::bad_alloc&) {
      return Error(ErrorCode::kOutOfMemory, "memory", "there is no more");
    } catch (const std::exception& error) {
      return Error(ErrorCode::kIo, "", "{}", error.what());
    }
    return std::nullopt;
  }

  // False where others have failed, and the first of them tells; its own Error is thrown there.
  bool agree(const std::optional<Error>& own) {
    const auto told = processes_.gather(own ? std::string("!") + own->what() : "", stop_);
    const auto failed =
        std::ranges::find_if(told, [](const std::string& text) { return !text.empty(); });
    if (failed == told.end()) return true;
    processes_.leave();
    if (!processes_.is_first()) return false;
    if (own) throw *own;
    throw Error(ErrorCode::kIo,
                fmt::format("process {} of {}", failed - told.begin() + 1, processes_.size()), "{}",
                failed->substr(1));
  }

  void prepare() {
    make_folder();
    list_.folder = options_.folder;
    const ModelSpec& asked = options_.model;
    const std::string path = asked.path.empty() ? default_model() : asked.path;
    if (path.empty()) {
      throw Error(ErrorCode::kUsage, "model",
                  "is needed: the model that comes with the program was not found beside it");
    }
    {
      const ModelParts parts = ModelParts::read(find_model(path, asked.base));
      list_.lines =
          read_offline_lines(options_.prompts, options_.defaults, parts, options_.skip_wrong);
    }
    for (size_t l = 0; l < list_.lines.size(); ++l) {
      for (int i = 0; i < list_.lines[l].request.count; ++i) {
        list_.pictures.push_back({l, i, list_.lines[l].file(i), false, list_.lines[l].error});
      }
    }
    load();
    result_.hash = list_.hash = result_.loaded.model->hash();
    result_.notes = adapter_notes(result_.loaded, result_.hash);
    const bool on_cpu = result_.loaded.context == nullptr;
    process_ = on_cpu ? anonymous_memory() : 0;
    const int64_t here = on_cpu ? available_memory() / processes_.local_size() + process_
                                : result_.loaded.context->memory().free;
    free_ = options_.max_memory > 0 ? options_.max_memory : here;
    check_same();
  }

  void make_folder() {
    std::error_code failed;
    fs::create_directories(options_.folder, failed);
    if (failed) {
      throw Error(ErrorCode::kIo, options_.folder.string(), "cannot be made: {}", failed.message());
    }
    result_.index = options_.folder / kOfflineIndex;
    check_output_file(result_.index);
    check_not_inputs({result_.index}, {options_.prompts, options_.model.path, options_.model.base});
  }

  // With all adapters, each once.
  void load() {
    ModelSpec spec = options_.model;
    spec.loras.clear();
    std::map<std::string, size_t> slots;
    for (const OfflineLine& line : list_.lines) {
      if (!line.error.empty()) continue;
      for (const LoraChoice& lora : line.loras) {
        if (slots.emplace(lora.file, spec.loras.size()).second) spec.loras.push_back({lora.file});
      }
    }
    spec.cancelled = [this] { return processes_.stopping(stop_()); };
    LoadedModel& loaded = result_.loaded;
    loaded = engine_.load(spec);
    if (options_.tiles) loaded.tiles = TileSize::usual(loaded.model->codec().scale());
    loaded.pipeline->set_tiles(loaded.tiles);
    for (OfflineLine& line : list_.lines) {
      if (!line.error.empty()) continue;
      for (const LoraChoice& lora : line.loras) {
        const auto& adapter = loaded.adapters[slots.at(lora.file)].adapter;
        try {
          adapter->lora().check_strength(lora.strength);
        } catch (const Error& error) {
          throw Error(error.code(),
                      fmt::format("{}: line {}", options_.prompts.string(), line.number),
                      "loras: {}", error.what());
        }
        line.request.adapters.push_back({adapter, lora.strength});
      }
    }
  }

  // Those who share out the same work come to the same shares.
  void check_same() {
    if (processes_.size() == 1) return;
    what_ = fmt::format("{} {} ", result_.hash, result_.loaded.precision.used);
    std::string all;
    for (const OfflinePicture& picture : list_.pictures) {
      all += picture.file + picture.error;
      if (!picture.error.empty()) continue;
      for (const auto& [key, value] : text_of(picture)) all += value + "\n";
    }
    what_ += text_hash(all);
  }

  PngText text_of(const OfflinePicture& picture) const {
    return list_.text_of(picture, result_.loaded);
  }

  // The first looks what there is and tells the others: a shared folder may not look the same
  // everywhere.
  void find_work() {
    if (stop_()) throw Error(ErrorCode::kCancelled, "", "interrupted");
    for (const std::string& other : processes_.gather(what_, stop_)) {
      if (other == what_) continue;
      throw Error(ErrorCode::kInvalidInput, options_.prompts.string(),
                  "processes do not agree on it, on the model or on its precision");
    }
    std::vector<float> there(list_.pictures.size());
    for (size_t p = 0; p < list_.pictures.size() && processes_.is_first(); ++p) {
      const OfflinePicture& picture = list_.pictures[p];
      if (!picture.error.empty() || options_.overwrite) continue;
      const std::string why =
          why_make(list_.path_of(picture), list_.request_of(picture), text_of(picture));
      there[p] = why.empty() ? 1 : 0;
      if (why.empty() || why == "missing") continue;
      result_.made_again.push_back({list_.lines[picture.line].number, picture.file, why});
    }
    processes_.sum(there, stop_);
    std::vector<OfflineWork> open;
    for (size_t p = 0; p < list_.pictures.size(); ++p) {
      list_.pictures[p].done = there[p] != 0;
      if (list_.pictures[p].done) ++result_.kept;
      if (list_.pictures[p].done || !list_.pictures[p].error.empty()) continue;
      open.push_back(work_of(p));
      steps_ += open.back().steps;
    }
    kept_ = there;
    const auto shares = share_out(std::move(open), processes_.size(), options_.batch);
    mine_ = shares[static_cast<size_t>(processes_.rank())];
    watch_others(shares);
  }

  OfflineWork work_of(size_t index) const {
    const GenerateRequest& request = list_.request_of(list_.pictures[index]);
    const Model& model = *result_.loaded.model;
    const bool guided = takes_two(request, model.sampling());
    const Shape latents = model.latent_shape(request.width, request.height);
    const Shape one{latents[1], latents[2], latents[3]};
    const Schedule schedule =
        make_schedule(*request.scheduler, request.steps, model.denoiser().image_tokens(one));
    OfflineWork work{index, {}, request.steps, 0};
    work.kind = fmt::format("{}x{} {} {}", request.width, request.height, schedule.memories,
                            schedule.uses_noise());
    const auto add_text = [&](const std::string& prompt) {
      const Conditioner& conditioner = model.conditioner();
      const int64_t tokens = conditioner.text_tokens(conditioner.tokenize(prompt));
      work.kind += fmt::format(" {}", model.denoiser().shape(one, {&tokens, 1}).text_tokens);
    };
    add_text(request.prompt);
    if (guided) add_text(request.negative.value_or(""));
    if (!request.skip.layers.empty()) {
      work.kind += fmt::format(" {} {}", layers_text(request.skip.layers), request.steps);
    }
    for (const LoraChoice& lora : list_.lines[list_.pictures[index].line].loras)
      work.kind += " " + lora.file;
    // Attention grows faster than the picture; decoding takes about two forwards.
    const auto pixels = static_cast<double>(request.width * request.height);
    work.cost = pixels * (1 + pixels / (1 << 22)) * (request.steps * (guided ? 2 : 1) + 2);
    return work;
  }

  void work() {
    OfflineRows rows(list_, result_.loaded, {process_, free_, options_.max_memory > 0},
                     result_.seconds, [this](const OfflineRows::Doing& doing) { tell(doing); });
    for (const std::vector<size_t>& batch : mine_) rows.make(batch);
  }

  // Others tell nothing while they work, but their pictures appear.
  struct Watched {
    size_t picture;
    FileState before;
  };
  void watch_others(const std::vector<OfflineBatches>& shares) {
    if (!processes_.is_first()) return;
    for (size_t r = 1; r < shares.size(); ++r) {
      for (const std::vector<size_t>& batch : shares[r]) {
        for (const size_t p : batch)
          others_.push_back({p, FileState::of(list_.path_of(list_.pictures[p]))});
      }
    }
  }

  // Asked before every step of a picture or more.
  void tell(const OfflineRows::Doing& doing) {
    const auto now = Clock::now();
    if (now - looked_ > std::chrono::seconds(1)) {
      looked_ = now;
      std::erase_if(others_, [&](const Watched& watched) {
        const OfflinePicture& picture = list_.pictures[watched.picture];
        const FileState state = FileState::of(list_.path_of(picture));
        if (state == watched.before || state == FileState{}) return false;
        steps_of_others_ += list_.request_of(picture).steps;
        return true;
      });
    }
    if (stop_()) throw Error(ErrorCode::kCancelled, "", "interrupted");
    progress_({list_.pictures[doing.picture].file, doing.steps_done + steps_of_others_, steps_});
  }

  // Everyone's results to the first, who writes the index.
  void finish(const std::optional<Error>& own) {
    nlohmann::json errors = nlohmann::json::array();
    std::vector<float> done(list_.pictures.size());
    for (const std::vector<size_t>& batch : mine_) {
      for (const size_t p : batch) {
        done[p] = list_.pictures[p].done ? 1 : 0;
        if (!list_.pictures[p].error.empty()) errors.push_back({p, list_.pictures[p].error});
      }
    }
    processes_.sum(done, stop_);
    const auto dump = [](const nlohmann::json& json) {
      return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    };
    for (const std::string& others : processes_.gather(dump(errors), stop_)) {
      for (const auto& error : nlohmann::json::parse(others)) {
        list_.pictures[error[0].get<size_t>()].error = error[1].get<std::string>();
      }
    }
    for (size_t p = 0; p < list_.pictures.size(); ++p) {
      if (done[p] == 0) continue;
      list_.pictures[p].done = true;
      ++result_.made;
    }
    std::optional<Error> failed = own;
    if (processes_.is_first()) {
      const std::optional<Error> second = attempt([&] { write_index(); });
      if (!failed) failed = second;
    }
    if (failed) {
      failed = Error(failed->code(), failed->where(),
                     "{}; {} of {} pictures are there, and the same command goes on",
                     failed->message(), result_.made + result_.kept, list_.pictures.size());
    }
    if (!agree(failed)) return;
    processes_.leave();
    summarize();
  }

  void summarize() {
    result_.lines = list_.lines.size();
    result_.pictures = list_.pictures.size();
    for (const OfflinePicture& picture : list_.pictures) {
      const OfflineLine& line = list_.lines[picture.line];
      if (!picture.error.empty()) result_.failed.push_back({line.number, line.id, picture.error});
    }
    result_.fallbacks = result_.loaded.fallbacks;
    for (const std::string& line : run_fallbacks(result_.loaded)) result_.fallbacks.push_back(line);
  }

  void write_index() const { write_file(result_.index, offline_index(list_, result_.loaded)); }

  // What is finished stays and is listed; what others have finished can be seen.
  [[noreturn]] void end_early() {
    if (!processes_.is_first()) {
      processes_.give_up();
      throw Error(ErrorCode::kCancelled, "", "process {} of {} was interrupted, too",
                  processes_.rank() + 1, processes_.size());
    }
    size_t there = 0;
    const std::optional<Error> failed = attempt([&] {
      if (kept_.empty()) return;  // nothing was looked at yet
      for (OfflinePicture& picture : list_.pictures) {
        if (!picture.done && picture.error.empty() && processes_.size() > 1) {
          picture.done =
              why_make(list_.path_of(picture), list_.request_of(picture), text_of(picture)).empty();
        }
        there += picture.done ? 1 : 0;
      }
      write_index();
    });
    processes_.give_up();
    if (kept_.empty()) throw Error(ErrorCode::kCancelled, "", "interrupted");
    throw Error(ErrorCode::kCancelled, "",
                "interrupted; {} of {} pictures are there, and the same command goes on{}", there,
                list_.pictures.size(), failed ? fmt::format("; no index: {}", failed->what()) : "");
  }

  Engine& engine_;
  const OfflineOptions& options_;
  Collective& processes_;
  const ProgressFn& progress_;
  Collective::Stop stop_;
  OfflineResult result_;
  OfflineList list_;
  std::string what_;         // that all processes work on
  std::vector<float> kept_;  // pictures that were there
  OfflineBatches mine_;
  std::vector<Watched> others_;
  Clock::time_point looked_ = Clock::now();
  int64_t steps_ = 0, steps_of_others_ = 0;
  int64_t process_ = 0, free_ = 0;
};

}  // namespace

OfflineResult generate_offline(Engine& engine, const OfflineOptions& options, Collective& processes,
                               const ProgressFn& progress) {
  return OfflineRun(engine, options, processes, progress).run();
}

}  // namespace halftone
