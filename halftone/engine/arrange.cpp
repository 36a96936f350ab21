#include "halftone/engine/arrange.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/runtime/block_plan.h"
#include "halftone/runtime/devices.h"

namespace halftone {
namespace {

using nlohmann::ordered_json;

// What encoders are tried in where their files' own width does not fit.
constexpr const char* kSmallText = "fp8";

// "text encoders and transformer in turns, text encoders in fp8, decoding in tiles"
std::string described(const LadderNeeds& needs, const Arrangement& one) {
  std::string what;
  const auto add = [&](const std::string& part) { what += (what.empty() ? "" : ", ") + part; };
  if (one.turns) add("text encoders in memory only while prompts are encoded");
  const LadderNeeds::Text& text = needs.texts[one.text];
  if (text.streamed) {
    add("their blocks streamed from the host");
  } else if (one.text > 0) {
    add("their weights in " + text.precision);
  }
  if (one.tiles) add("decoding in tiles");
  if (one.streamed) add("the denoiser's blocks streamed from the host");
  return what.empty() ? "everything resident" : what;
}

// A way to keep the text encoders, and the model that does.
struct TextWay {
  std::shared_ptr<const Model> model;
  Choice choice;
  bool streamed = false;
};

class Arranging {
 public:
  Arranging(LoadedModel& loaded, const GenerateRequest& request, const ArrangeOptions& options)
      : loaded_(loaded), request_(request), options_(options) {}

  ArrangedMemory run() {
    const TileSize usual = TileSize::usual(loaded_.model->codec().scale());
    find_ways();
    for (const TextWay& way : ways_) add_text(way);
    LadderNeeds& needs = plan_.needs;
    if (options_.tiles != TileChoice::kOff && is_larger_than(usual)) {
      needs.tiled_decoding = phases_of(*ways_[0].model, usual).decoding;
    }
    if (options_.tiles == TileChoice::kOn && needs.tiled_decoding) needs.decoding.reset();
    if (loaded_.context == nullptr) {  // a device's memory has nothing of the process in it
      needs.process = std::max<int64_t>(0, anonymous_memory()) + library_code_bytes();
    }
    if (loaded_.context != nullptr && loaded_.stream_blocks.asked == "auto") add_streamed();
    find_available();
    plan_.choice = climb(needs, plan_.available);
    if (plan_.choice.chosen.tiles) plan_.tiles = usual;
    if (!plan_.choice.fits) refuse();
    if (plan_.choice.chosen.streamed) choose_blocks();
    apply();
    return std::move(plan_);
  }

 private:
  // The one that was loaded first.
  void find_ways() {
    ways_.push_back({loaded_.model, loaded_.text_precision});
    find_small_way();
    // The bits stay, and bringing blocks one by one takes no longer than bringing all.
    if (loaded_.context != nullptr && loaded_.stream_blocks.asked == "auto") {
      ways_.push_back({loaded_.model->with_streamed_encoders(), loaded_.text_precision, true});
    }
  }
  void find_small_way() {
    const LoadReport& report = loaded_.model->report();
    const bool stored = std::ranges::any_of(
        report.encoders, [](const EncoderReport& encoder) { return !encoder.formats.empty(); });
    if (loaded_.text_precision.asked != "auto" || stored) return;
    try {
      TextWay small{loaded_.model->with_text_format(*find_format(kSmallText)), {}};
      small.choice = chosen_text_precision("auto", loaded_.device_info, *small.model);
      ways_.push_back(std::move(small));
    } catch (const Error&) {
      // Encoders without a linear that the format takes stay as they are.
    }
  }

  PhaseMemory phases_of(const Model& model, const std::optional<TileSize>& tiles) const {
    Pipeline planner(model.imagined());
    planner.set_tiles(tiles);
    return plan_generate_phases(planner, request_);
  }

  void add_text(const TextWay& way) {
    const PhaseMemory phases = phases_of(*way.model, {});
    LadderNeeds& needs = plan_.needs;
    needs.texts.push_back({way.choice.used, phases.text.owned_weights - phases.adapters,
                           phases.encoding, way.streamed});
    if (needs.texts.size() > 1) return;
    needs.adapters = phases.adapters;
    needs.picture_weights = phases.picture.owned_weights - phases.adapters;
    needs.denoising = phases.denoising;
    needs.decoding = phases.decoding;
  }

  void add_streamed() {
    blocks_ = loaded_.model->imagined()->denoiser_part().block_bytes();
    const BlockPlan all = stream_blocks(blocks_, kAllBlocks);
    int64_t bytes = 0;
    for (const int64_t block : blocks_) bytes += block;
    if (all.on_device() >= bytes) return;  // few blocks save nothing
    plan_.needs.streamed = {plan_.needs.picture_weights - bytes + all.resident, all.slots};
  }

  // As few as leave what is available: those that stay need no copies.
  void choose_blocks() {
    LadderNeeds& needs = plan_.needs;
    Arrangement& chosen = plan_.choice.chosen;
    const BlockPlan all = stream_blocks(blocks_, kAllBlocks);
    const int64_t others = needs.streamed->picture_weights - all.resident;
    int64_t budget = plan_.available - chosen.picture_peak + all.on_device();
    for (;;) {
      const BlockPlan some = stream_blocks_within(blocks_, budget);
      needs.streamed = {others + some.resident, some.slots};
      add_peaks(needs, chosen);
      streamed_ = some.count;
      if (some.count == all.count || chosen.peak <= plan_.available) return;
      // Less than these take, so that others are tried.
      budget =
          std::min(budget, some.on_device()) - std::max<int64_t>(1, chosen.peak - plan_.available);
    }
  }

  bool is_larger_than(const TileSize& tile) const {
    const Shape latents = loaded_.model->latent_shape(request_.width, request_.height);
    return latents[2] > tile.side || latents[3] > tile.side;
  }

  void find_available() {
    plan_.limited = options_.limit > 0;
    plan_.available = options_.limit;
    if (plan_.limited) return;
    // A device holds the adapters already.
    plan_.available = loaded_.context != nullptr
                          ? loaded_.context->memory().free + plan_.needs.adapters
                          : available_memory();
  }

  [[noreturn]] void refuse() const {
    const Arrangement& least = plan_.choice.chosen;
    // What was asked for, and need not be.
    std::string less = "a smaller size or batch";
    if (options_.tiles == TileChoice::kOff &&
        is_larger_than(TileSize::usual(loaded_.model->codec().scale()))) {
      less += " or vae-tiles auto";
    }
    if (request_.cache > 0) less += " or a run without a step cache";
    throw Error(ErrorCode::kOutOfMemory, plan_.limited ? "max-memory" : "memory",
                "{} are needed at least ({}; {} to encode prompts, {} to make pictures) and {} are "
                "{}; {} needs less",
                human_bytes(least.peak), described(plan_.needs, least),
                human_bytes(least.text_peak), human_bytes(least.picture_peak),
                human_bytes(plan_.available), plan_.limited ? "allowed" : "free", less);
  }

  void apply() {
    const Arrangement& chosen = plan_.choice.chosen;
    loaded_.model = ways_[chosen.text].model;
    loaded_.text_precision = ways_[chosen.text].choice;
    ways_.clear();
    if (chosen.streamed) loaded_.model = loaded_.model->with_streamed_blocks(streamed_);
    loaded_.takes_turns = chosen.turns;
    loaded_.tiles = plan_.tiles;
    loaded_.pipeline = nullptr;
    if (!chosen.turns) loaded_.model = loaded_.model->with_placed({true, true});
    loaded_.pipeline = loaded_.make_pipeline();
    loaded_.pipeline->set_adapters(loaded_.adapters);
    plan_.memory = plan_generate(*loaded_.pipeline, request_);
    plan_.memory.process = plan_.needs.process;
    if (loaded_.context != nullptr) {
      tell_streamed(loaded_.model->imagined()->report().streamed, loaded_.stream_blocks);
    }
  }

  LoadedModel& loaded_;
  const GenerateRequest& request_;
  const ArrangeOptions& options_;
  ArrangedMemory plan_;
  std::vector<TextWay> ways_;
  std::vector<int64_t> blocks_;  // bytes of the denoiser's
  int streamed_ = 0;             // so many of them
};

ordered_json running_json(const RunningNeeds& needs) {
  return {{"shared", needs.shared}, {"kept", needs.kept}};
}

ordered_json arrangement_json(const LadderNeeds& needs, const Arrangement& one) {
  return {{"rung", name_of(one.rung)},
          {"turns", one.turns},
          {"text_precision", needs.texts[one.text].precision},
          {"text_streamed", needs.texts[one.text].streamed},
          {"tiles", one.tiles},
          {"streamed", one.streamed},
          {"peak", one.peak},
          {"text_peak", one.text_peak},
          {"picture_peak", one.picture_peak}};
}

}  // namespace

std::string ArrangedMemory::line() const {
  if (choice.chosen.rung == Rung::kResident) return {};
  return fmt::format("{}: with everything resident {} would be needed, and {} are {}",
                     described(needs, choice.chosen), human_bytes(choice.resident.peak),
                     human_bytes(available), limited ? "allowed" : "free");
}

ArrangedMemory arrange(LoadedModel& loaded, const GenerateRequest& request,
                       const ArrangeOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  ArrangedMemory kept = Arranging(loaded, request, options).run();
  loaded.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return kept;
}

ordered_json memory_plan_json(const ArrangedMemory& plan) {
  ordered_json texts = ordered_json::array(), tried = ordered_json::array();
  for (const LadderNeeds::Text& text : plan.needs.texts) {
    texts.push_back({{"precision", text.precision},
                     {"weights", text.weights},
                     {"encoding", running_json(text.encoding)}});
  }
  for (const Arrangement& one : arrangements(plan.needs)) {
    tried.push_back(arrangement_json(plan.needs, one));
  }
  ordered_json parts = {{"text_encoders", std::move(texts)},
                        {"denoiser_and_codec", plan.needs.picture_weights},
                        {"adapters", plan.needs.adapters},
                        {"denoising", running_json(plan.needs.denoising)}};
  if (plan.needs.decoding) parts["decoding"] = running_json(*plan.needs.decoding);
  if (plan.needs.tiled_decoding) {
    parts["decoding_in_tiles"] = running_json(*plan.needs.tiled_decoding);
  }
  parts["process"] = plan.needs.process;
  ordered_json json = arrangement_json(plan.needs, plan.choice.chosen);
  json["why"] = plan.line();
  json["available"] = plan.available;
  json["limited"] = plan.limited;
  json["parts"] = std::move(parts);
  json["arrangements"] = std::move(tried);
  return json;
}

}  // namespace halftone
