// What a Pipeline's memory will be: all that is resident, and the largest of what runs one after
// the other.
#include <algorithm>
#include <set>

#include "halftone/base/error.h"
#include "halftone/engine/pipeline.h"

namespace halftone {
namespace {

void add_weights(const Weights& weights, ModelMemory& memory) {
  for (const auto& [name, weight] : weights) {
    if (host_block_of(weight) != nullptr) {
      memory.streamed_weights += byte_size_of(weight);
      continue;
    }
    const auto* quantized = std::get_if<QuantizedTensor>(&weight);
    const Tensor& stored = quantized != nullptr ? quantized->codes : std::get<Tensor>(weight);
    (stored.mapped() ? memory.file_weights : memory.owned_weights) += byte_size_of(weight);
  }
}

// What is resident together, and the largest of what runs one after the other.
struct Planned {
  explicit Planned(bool device) : on_device(device) {}

  // What a program takes, with what others hold meanwhile.
  RunningNeeds needs_of(const Program& program, int64_t beside) const {
    const MemoryUse& use = program.memory();
    if (on_device) return {use.in_arena(), use.resident};
    return {use.working() + beside, 0};
  }

  void add(const Weights& weights) { add_weights(weights, memory); }
  // `beside` is what others hold meanwhile.
  void consider(const Program& program, int64_t beside) {
    const MemoryUse& use = program.memory();
    if (on_device) {  // results lie among the values, and inputs of all programs stay
      if (seen.insert(&program).second) memory.borders += use.resident;
      if (use.in_arena() > memory.in_arena()) {
        memory.arena = use.arena;
        memory.workspace = use.workspace;
        memory.slots = use.slots;
      }
      return;
    }
    if (use.working() + beside > memory.running()) {
      memory.library = use.library;
      memory.arena = use.arena;
      memory.workspace = use.workspace;
      memory.borders = use.borders + beside;
    }
  }

  RunningNeeds running() const {
    if (on_device) return {memory.in_arena(), memory.borders};
    return {memory.running(), 0};
  }

  bool on_device;
  ModelMemory memory;
  std::set<const Program*> seen;
};

}  // namespace

ModelMemory Pipeline::plan(const Shape& latents, const SamplerGraph& sampler,
                           std::span<const std::string> prompts, const AdapterChoices& adapters,
                           bool caches) {
  const PhaseMemory phases = plan_phases(latents, sampler, prompts, adapters, caches);
  if (takes_turns_) return phases.turns();
  arena_->expect(phases.all.in_arena());
  return phases.all;
}

PhaseMemory Pipeline::plan_phases(const Shape& latents, const SamplerGraph& sampler,
                                  std::span<const std::string> prompts,
                                  const AdapterChoices& adapters, bool caches) {
  const PlacedParts now = model_->placed();
  if (!model_->is_imagined() && (takes_turns_ || !now.text || !now.picture)) {
    Pipeline planner(model_->imagined());
    planner.remembered_ = remembered_;
    planner.tiles_ = tiles_;
    return planner.plan_phases(latents, sampler, prompts, adapters, caches);
  }
  const int64_t rows = sampler.jobs * (sampler.rule == GuidanceRule::kNone ? 1 : 2);
  const bool on_device = model_->options().stream.device != nullptr;
  Planned text(on_device), picture(on_device), all(on_device);
  for (size_t i = 0; i < encoders_.size() && model_->has_encoders(); ++i) {
    for (Planned* to : {&text, &all}) to->add(model_->encoder_part(i).weights());
  }
  for (const ModelPart* part : {&model_->denoiser_part(), &model_->codec_part()}) {
    for (Planned* to : {&picture, &all}) to->add(part->weights());
  }
  const Conditioner& conditioner = model_->conditioner();
  std::vector<int64_t> texts;
  Slots of_text;
  for (const AdapterChoice& choice : text_adapters(adapters)) of_text.push_back(choice.adapter);
  for (const std::string& prompt : prompts) {
    const auto known = remembered_.find(prompt);
    if (known != remembered_.end() && of_text.empty()) {
      texts.push_back(known->second.at("text").shape()[0]);
      continue;
    }
    const PromptTokens tokens = conditioner.tokenize(prompt);
    texts.push_back(conditioner.text_tokens(tokens));
    for (size_t i = 0; i < encoders_.size(); ++i) {
      const Program& program = *encoder_program(i, conditioner.tokens(i, tokens), of_text).program;
      for (Planned* to : {&text, &all}) to->consider(program, 0);
    }
  }
  const AdapterChoices* row = &adapters;
  const auto slots = adapter_slots({&row, 1});
  for (const auto& adapter : slots) {
    for (Planned* to : {&text, &picture, &all}) to->add(adapter->all_weights());
  }
  // Rows take turns with the prompts.
  for (size_t i = 0; static_cast<int64_t>(texts.size()) < rows; ++i) texts.push_back(texts[i]);
  const Shape one{latents[1], latents[2], latents[3]};
  DenoiserShape shape = model_->denoiser().shape(one, texts);
  shape.rows = rows;
  // Of jobs: latents, and what the sampler remembers.
  const bool skips = !sampler.skip_blocks.empty();
  int64_t of_jobs = sampler.jobs * (1 + static_cast<int64_t>(sampler.memories) + (skips ? 1 : 0)) *
                    latents.numel() * static_cast<int64_t>(sizeof(float));
  // Programs that steps take, and the inputs that they were given, which stay.
  std::vector<const Entry*> steps = step_programs(shape, sampler, slots, caches);
  if (caches) {
    const ValueType& tokens = steps[0]->program->graph().inputs().at(kCacheBefore).type();
    of_jobs += 2 * tokens.shape.checked_bytes(tokens.dtype).value();
  }
  if (skips) {  // other steps than those, and the prediction before them
    SamplerGraph usual = sampler;
    usual.skip_blocks.clear();
    for (const Entry* step : step_programs(shape, usual, slots, caches)) {
      if (std::find(steps.begin(), steps.end(), step) == steps.end()) steps.push_back(step);
    }
    DenoiserShape first = shape;
    first.rows = sampler.jobs;
    steps.push_back(&denoiser_program(first, {.skip_blocks = sampler.skip_blocks}, slots));
  }
  int64_t given = 0;
  for (const Entry* step : steps) given += step->program->memory().resident;
  const Shape whole{1, latents[1], latents[2], latents[3]}, together = decoded_together(whole);
  const Program& decoder = *decoder_program(together).program;
  int64_t beside = of_jobs + given;
  if (together != whole) {
    // The picture that tiles are put into, and the latents that they are cut from.
    const int64_t scale = model_->codec().scale();
    beside +=
        (3 * scale * scale + whole[1]) * whole[2] * whole[3] * static_cast<int64_t>(sizeof(float));
  }
  PhaseMemory phases;
  for (const Entry* step : steps) {
    const int64_t of_others = of_jobs + given - step->program->memory().resident;
    for (Planned* to : {&picture, &all}) to->consider(*step->program, of_others);
    const RunningNeeds needs = picture.needs_of(*step->program, of_others);
    phases.denoising.shared = std::max(phases.denoising.shared, needs.shared);
    phases.denoising.kept += needs.kept;
  }
  for (Planned* to : {&picture, &all}) {
    to->consider(decoder, beside);
    if (on_device) to->memory.borders += of_jobs;
  }
  phases.text = text.memory;
  phases.picture = picture.memory;
  phases.all = all.memory;
  for (const auto& adapter : slots) {
    for (const auto& [name, weight] : adapter->all_weights()) {
      phases.adapters += byte_size_of(weight);
    }
  }
  phases.encoding = text.running();
  if (on_device) phases.denoising.kept += of_jobs;
  phases.decoding = picture.needs_of(decoder, beside);
  return phases;
}

ModelMemory Pipeline::plan_encoding(const Shape& pictures, std::span<const std::string> prompts) {
  ModelMemory memory;
  std::vector<int64_t> longest(encoders_.size(), 1);
  for (size_t i = 0; i < encoders_.size(); ++i) {
    add_weights(model_->encoder_part(i).weights(), memory);
  }
  add_weights(model_->denoiser_part().weights(), memory);
  add_weights(model_->codec_part().weights(), memory);
  const Conditioner& conditioner = model_->conditioner();
  for (const std::string& prompt : prompts) {
    try {
      const PromptTokens tokens = conditioner.tokenize(prompt);
      for (size_t i = 0; i < longest.size(); ++i) {
        longest[i] = std::max(longest[i], conditioner.tokens(i, tokens));
      }
    } catch (const Error&) {
      continue;  // whoever encodes it will be told
    }
  }
  std::vector<MemoryUse> uses = {picture_program(pictures).program->memory()};
  for (size_t i = 0; i < longest.size(); ++i) {
    uses.push_back(encoder_program(i, longest[i]).program->memory());
  }
  for (const MemoryUse& use : uses) {
    memory.arena = std::max(memory.arena, use.arena);
    memory.workspace = std::max(memory.workspace, use.workspace);
    memory.slots = std::max(memory.slots, use.slots);
    memory.library = std::max(memory.library, use.library);
    memory.borders = std::max(memory.borders, use.borders + use.resident);
  }
  arena_->expect(memory.in_arena());
  return memory;
}

}  // namespace halftone
