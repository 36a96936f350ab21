#include "halftone/training/checkpoints.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <thread>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/io/json.h"
#include "halftone/io/output.h"
#include "halftone/io/resume_file.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kRun = "halftone.run";
constexpr const char* kPosition = "halftone.position";
constexpr const char* kTold = "halftone.told";
constexpr const char* kCurve = "curve";
constexpr const char* kHeldOut = "held_out";
constexpr const char* kPrefix = "step-";
constexpr const char* kState = "state.safetensors";

// Losses are doubles, and a curve is to go on as it began.
constexpr int64_t kCurveColumns = 3;

Tensor pack_curve(const std::vector<TrainStep>& curve) {
  Tensor packed = Tensor::empty(DType::kF64, {static_cast<int64_t>(curve.size()), kCurveColumns});
  auto to = packed.mutable_as<double>();
  for (size_t i = 0; i < curve.size(); ++i) {
    to[3 * i] = curve[i].loss;
    to[3 * i + 1] = curve[i].gradient_norm;
    to[3 * i + 2] = curve[i].learning_rate;
  }
  return packed;
}

std::vector<TrainStep> unpack_curve(const Tensor& packed, const std::string& where) {
  if (packed.dtype() != DType::kF64 || packed.shape().rank() != 2 ||
      packed.shape()[1] != kCurveColumns) {
    throw Error(ErrorCode::kInvalidInput, where, "its curve is none");
  }
  const auto from = packed.as<double>();
  std::vector<TrainStep> curve(static_cast<size_t>(packed.shape()[0]));
  for (size_t i = 0; i < curve.size(); ++i) {
    curve[i] = {static_cast<int64_t>(i) + 1, from[3 * i], from[3 * i + 1], from[3 * i + 2]};
  }
  return curve;
}

Tensor pack_held_out(const std::vector<HeldOutLoss>& losses) {
  Tensor packed = Tensor::empty(DType::kF64, {static_cast<int64_t>(losses.size()), 2});
  auto to = packed.mutable_as<double>();
  for (size_t i = 0; i < losses.size(); ++i) {
    to[2 * i] = static_cast<double>(losses[i].step);
    to[2 * i + 1] = losses[i].loss;
  }
  return packed;
}

std::vector<HeldOutLoss> unpack_held_out(const Tensor& packed, const std::string& where) {
  if (packed.dtype() != DType::kF64 || packed.shape().rank() != 2 || packed.shape()[1] != 2) {
    throw Error(ErrorCode::kInvalidInput, where, "its losses of what was held out are none");
  }
  const auto from = packed.as<double>();
  std::vector<HeldOutLoss> losses(static_cast<size_t>(packed.shape()[0]));
  for (size_t i = 0; i < losses.size(); ++i) {
    const double step = from[2 * i];
    if (!(step >= 0 && step < 1e15)) {
      throw Error(ErrorCode::kInvalidInput, where, "its losses of what was held out are none");
    }
    losses[i] = {static_cast<int64_t>(step), from[2 * i + 1]};
  }
  return losses;
}

// What was told so far, so that a run that goes on tells the same.
json told_json(const TrainedSoFar& run) {
  json told = {
      {"held_out", run.held_out_hash}, {"cosines", json::array()}, {"samples", json::array()}};
  for (const auto& [weight, cosine] : run.cosines) told["cosines"].push_back({weight, cosine});
  for (const SampleMade& sample : run.samples) {
    told["samples"].push_back({sample.step, sample.path, sample.prompt});
  }
  return told;
}

void read_told(const json& told, const std::string& where, TrainedSoFar& run) {
  try {
    run.held_out_hash = told.at("held_out").get<std::string>();
    for (const json& of : told.at("cosines")) {
      run.cosines.push_back({of.at(0).get<std::string>(), of.at(1).get<double>()});
    }
    for (const json& of : told.at("samples")) {
      run.samples.push_back(
          {of.at(0).get<int64_t>(), of.at(1).get<std::string>(), of.at(2).get<std::string>()});
    }
  } catch (const json::exception&) {
    throw Error(ErrorCode::kInvalidInput, where, "its '{}' is none", kTold);
  }
}

}  // namespace

Checkpoints::Checkpoints(const fs::path& output, int64_t keep, bool go_on)
    : folder_(output), keep_(keep), go_on_(go_on) {
  folder_.replace_extension(".checkpoints");
}

fs::path Checkpoints::path_of(int64_t step) const {
  return folder_ / fmt::format("{}{:06}", kPrefix, step);
}

void Checkpoints::wait_for_others(const std::function<bool()>& stop) const {
  while (is_being_written_to(folder_)) {
    if (stop && stop()) throw Error(ErrorCode::kCancelled, "", "interrupted");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

void Checkpoints::save(const TrainedSoFar& run, const ordered_json& how,
                       const std::function<void(const fs::path&)>& write_result) {
  if (!go_on_ && !list().empty()) {
    fs::path old = folder_;
    old += ".old";
    std::error_code error;
    fs::remove_all(old, error);
    fs::rename(folder_, old, error);
    if (error) throw Error(ErrorCode::kIo, old.string(), "{}", error.message());
  }
  go_on_ = true;
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) throw Error(ErrorCode::kIo, folder_.string(), "{}", error.message());
  OutputFolder folder(path_of(run.state.step));
  folder.write([&] {
    std::vector<std::pair<std::string, Tensor>> tensors(run.state.tensors.begin(),
                                                        run.state.tensors.end());
    tensors.emplace_back(kCurve, pack_curve(run.curve));
    if (!run.held_out.empty()) tensors.emplace_back(kHeldOut, pack_held_out(run.held_out));
    const json position = {{"step", run.state.step},
                           {"epoch", run.state.position.epoch},
                           {"left", run.state.position.left}};
    write_resume_file(
        folder.staging() / kState, tensors,
        {{kRun, how.dump()},
         {kPosition, position.dump()},
         {kTold, told_json(run).dump(-1, ' ', false, json::error_handler_t::replace)}});
    write_result(folder.staging());
  });
  folder.commit({});
  const std::vector<Found> all = list();
  for (size_t i = static_cast<size_t>(std::max<int64_t>(1, keep_)); i < all.size(); ++i) {
    std::error_code ignored;  // one that cannot be removed harms no one
    fs::remove_all(all[i].folder, ignored);
  }
}

std::vector<Checkpoints::Found> Checkpoints::list() const {
  std::vector<Found> found;
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    const char* digits = name.data() + std::string_view(kPrefix).size();
    const char* last = name.data() + name.size();
    int64_t step = 0;
    const auto [end_of_number, failed] = std::from_chars(digits, last, step);
    if (failed != std::errc() || end_of_number != last) continue;
    if (path_exists(it->path() / kState)) found.push_back({it->path(), step});
  }
  std::sort(found.begin(), found.end(),
            [](const Found& a, const Found& b) { return a.step > b.step; });
  return found;
}

std::string Checkpoints::recorded(const fs::path& checkpoint, const std::string& option) {
  try {
    const SafetensorsFile file(checkpoint / kState);
    const auto found = file.metadata().find(kRun);
    if (found == file.metadata().end()) return "";
    const json run = json::parse(found->second, nullptr, false);
    return run.is_object() && run.contains(option) && run[option].is_string()
               ? run[option].get<std::string>()
               : "";
  } catch (const Error&) {
    return "";  // damaged, which is told of when it is loaded
  }
}

TrainedSoFar Checkpoints::load(const fs::path& checkpoint, const ordered_json& how) {
  const SafetensorsFile file(checkpoint / kState);
  const std::string where = file.path().string();
  check_resume_file(file);
  const auto said = [&](const char* key) {
    const auto found = file.metadata().find(key);
    const json value =
        found == file.metadata().end() ? json() : json::parse(found->second, nullptr, false);
    if (!value.is_object()) throw Error(ErrorCode::kInvalidInput, where, "has no '{}'", key);
    return value;
  };
  const json run = said(kRun), position = said(kPosition);
  for (const auto& [key, value] : how.items()) {
    if (run.value(key, json()) == json(value)) continue;
    if (key == "model" || key == "data") {  // by their hashes, which say nothing to anyone
      throw Error(ErrorCode::kUsage, key, "is another one than {} was trained {}: {}", where,
                  key == "data" ? "on" : "for",
                  key == "data" ? "pictures, captions, trigger, resolution or prior have changed"
                                : "some of its files differ");
    }
    throw Error(ErrorCode::kUsage, key, "is {} now, and {} was trained with {}", value.dump(),
                where, run.value(key, json()).dump());
  }
  TrainedSoFar so_far;
  if (file.metadata().contains(kTold))
    read_told(said(kTold), where, so_far);  // older ones have none
  const auto number = [&](const char* key) {
    const json value = position.value(key, json());
    if (!value.is_number_integer() || value.get<int64_t>() < 0) {
      throw Error(ErrorCode::kInvalidInput, where, "has no '{}'", key);
    }
    return value.get<int64_t>();
  };
  so_far.state.step = number("step");
  so_far.state.position = {number("epoch"), number("left")};
  for (const TensorEntry& entry : file.tensors()) {
    if (entry.name == kCurve) {
      so_far.curve = unpack_curve(file.tensor(entry), where);
    } else if (entry.name == kHeldOut) {
      so_far.held_out = unpack_held_out(file.tensor(entry), where);
    } else {
      so_far.state.tensors.emplace(entry.name, file.tensor(entry));
    }
  }
  if (static_cast<int64_t>(so_far.curve.size()) != so_far.state.step) {
    throw Error(ErrorCode::kInvalidInput, where, "its curve has {} steps of {}",
                so_far.curve.size(), so_far.state.step);
  }
  return so_far;
}

}  // namespace halftone
