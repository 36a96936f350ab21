#include "halftone/engine/pipeline.h"

#include <algorithm>
#include <set>

#include "halftone/base/error.h"
#include "halftone/models/float_values.h"
#include "halftone/runtime/devices.h"

namespace halftone {
namespace {

constexpr size_t kMostPrograms = 8, kMostPrompts = 8;

Tensor as_float(const Tensor& x) {
  if (x.dtype() == DType::kF32) return x;
  Tensor y = Tensor::empty(DType::kF32, x.shape());
  const std::vector<float> values = float_values(x);
  std::copy(values.begin(), values.end(), y.mutable_as<float>().begin());
  return y;
}

void add_weights(const Weights& weights, ModelMemory& memory) {
  for (const auto& [name, weight] : weights) {
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
    if (on_device) return {use.arena + use.workspace, use.resident};
    return {use.working() + beside, 0};
  }

  void add(const Weights& weights) { add_weights(weights, memory); }
  // `beside` is what others hold meanwhile.
  void consider(const Program& program, int64_t beside) {
    const MemoryUse& use = program.memory();
    if (on_device) {  // results lie among the values, and inputs of all programs stay
      if (seen.insert(&program).second) memory.borders += use.resident;
      if (use.arena + use.workspace > memory.arena + memory.workspace) {
        memory.arena = use.arena;
        memory.workspace = use.workspace;
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
    if (on_device) return {memory.arena + memory.workspace, memory.borders};
    return {memory.running(), 0};
  }

  bool on_device;
  ModelMemory memory;
  std::set<const Program*> seen;
};

// Adapters of all rows, each once, in the order in which they are first met.
std::vector<std::shared_ptr<const Adapter>> slots_of(const Rows& rows) {
  std::vector<std::shared_ptr<const Adapter>> slots;
  for (const AdapterChoices* row : rows.adapters) {
    for (const AdapterChoice& choice : *row) {
      if (std::find(slots.begin(), slots.end(), choice.adapter) == slots.end()) {
        slots.push_back(choice.adapter);
      }
    }
  }
  // A row adds what adapters give in one order, whichever other rows are with it.
  std::sort(slots.begin(), slots.end(), [](const auto& a, const auto& b) {
    return a->lora().report().file < b->lora().report().file ||
           (a->lora().report().file == b->lora().report().file && a.get() < b.get());
  });
  return slots;
}

float strength_of(const AdapterChoices& row, const std::shared_ptr<const Adapter>& adapter) {
  float strength = 0;
  for (const AdapterChoice& choice : row) {
    if (choice.adapter == adapter) strength += choice.strength;
  }
  return strength;
}

}  // namespace

Pipeline::Pipeline(std::shared_ptr<const Model> model, std::function<bool()> cancelled,
                   std::shared_ptr<Arena> arena)
    : loaded_(std::move(model)),
      model_(loaded_),
      cancelled_(std::move(cancelled)),
      arena_(std::move(arena)) {
  encoders_.resize(model_->conditioner().folders().size());
}

template <class Build>
Pipeline::Entry& Pipeline::entry(Programs& programs, const std::string& key, const ModelPart& part,
                                 std::span<const std::shared_ptr<const Adapter>> adapters,
                                 const Build& build) {
  for (auto it = programs.begin(); it != programs.end(); ++it) {
    if (it->key != key) continue;
    programs.splice(programs.begin(), programs, it);
    return programs.front();
  }
  if (programs.size() == kMostPrograms) programs.pop_back();
  const LoadOptions& load = model_->options();
  CompileOptions how = part.compile_options();
  Weights with_adapters;
  for (size_t slot = 0; slot < adapters.size(); ++slot) {
    how.lora.push_back(adapters[slot]->lora().sites());
    with_adapters.merge(adapters[slot]->weights(slot));
  }
  if (!adapters.empty()) with_adapters.insert(part.weights().begin(), part.weights().end());
  const Weights& weights = adapters.empty() ? part.weights() : with_adapters;
  const auto graph = compile(*build(), how, *load.kernels, load.stream).graph;
  const ProgramOptions options{load.kernels, load.stream, load.compile, cancelled_,
                               model_->is_imagined()};
  programs.push_front({key,
                       std::make_unique<Program>(graph, weights, options, arena_),
                       {},
                       {},
                       {adapters.begin(), adapters.end()}});
  ++built_;
  for (const std::string& note : programs.front().program->notes()) add_note(note);
  return programs.front();
}

void Pipeline::add_note(const std::string& note) {
  if (note.empty()) return;
  if (std::find(notes_.begin(), notes_.end(), note) == notes_.end()) notes_.push_back(note);
}

Pipeline::Entry& Pipeline::encoder_program(size_t index, int64_t tokens) {
  return entry(encoders_[index], std::to_string(tokens), model_->encoder_part(index), {}, [&] {
    return model_->conditioner().build(index, tokens, {model_->text_activations(), false});
  });
}

Pipeline::Entry& Pipeline::denoiser_program(
    const DenoiserShape& shape, const Use& use,
    std::span<const std::shared_ptr<const Adapter>> adapters) {
  std::string key = shape.str() + (use.tap_blocks ? " tapped" : "");
  for (const auto& adapter : adapters) key += fmt::format(" {}", fmt::ptr(adapter.get()));
  if (use.sampler) {
    key += fmt::format(" sampler {} {} {}", static_cast<int>(use.sampler->rule),
                       use.sampler->memories, use.sampler->noise);
  }
  return entry(denoisers_, key, model_->denoiser_part(), adapters, [&] {
    const auto graph =
        model_->denoiser().build(shape, {model_->options().activations, use.tap_blocks});
    if (use.sampler) add_sampler(*graph, *use.sampler);
    return graph;
  });
}

Pipeline::Entry& Pipeline::decoder_program(const Shape& latents) {
  return entry(decoders_, latents.str(), model_->codec_part(), {}, [&] {
    return model_->codec().decoder(latents, {model_->options().activations, false});
  });
}

Pipeline::Entry& Pipeline::picture_program(const Shape& pictures) {
  return entry(picture_encoders_, pictures.str(), model_->codec_part(), {}, [&] {
    return model_->codec().encoder(pictures, {model_->options().activations, false});
  });
}

void Pipeline::take_turns() {
  takes_turns_ = true;
  need({});
  loaded_ = model_;
}

void Pipeline::need(PlacedParts parts) {
  const PlacedParts now = model_->placed();
  if (!takes_turns_) {
    HT_ASSERT((now.text || !parts.text) && (now.picture || !parts.picture));
    return;
  }
  if (parts.text == now.text && parts.picture == now.picture) return;
  // What goes is gone before anything comes.
  for (Programs& programs : encoders_) programs.clear();
  for (Programs* programs : {&denoisers_, &decoders_, &picture_encoders_}) programs->clear();
  arena_->release();
  model_ = model_->with_placed({});
  give_back_freed_memory();
  model_ = model_->with_placed(parts);
}

ModelMemory Pipeline::plan(const Shape& latents, const SamplerGraph& sampler,
                           std::span<const std::string> prompts, const AdapterChoices& adapters) {
  const PhaseMemory phases = plan_phases(latents, sampler, prompts, adapters);
  if (takes_turns_) return phases.turns();
  arena_->expect(phases.all.arena + phases.all.workspace);
  return phases.all;
}

PhaseMemory Pipeline::plan_phases(const Shape& latents, const SamplerGraph& sampler,
                                  std::span<const std::string> prompts,
                                  const AdapterChoices& adapters) {
  const PlacedParts now = model_->placed();
  if (!model_->is_imagined() && (takes_turns_ || !now.text || !now.picture)) {
    Pipeline planner(model_->imagined());
    planner.remembered_ = remembered_;
    planner.tiles_ = tiles_;
    return planner.plan_phases(latents, sampler, prompts, adapters);
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
  for (const std::string& prompt : prompts) {
    if (const auto known = remembered_.find(prompt); known != remembered_.end()) {
      texts.push_back(known->second.at("text").shape()[0]);
      continue;
    }
    const PromptTokens tokens = conditioner.tokenize(prompt);
    texts.push_back(conditioner.text_tokens(tokens));
    for (size_t i = 0; i < encoders_.size(); ++i) {
      const Program& program = *encoder_program(i, conditioner.tokens(i, tokens)).program;
      for (Planned* to : {&text, &all}) to->consider(program, 0);
    }
  }
  const AdapterChoices* row = &adapters;
  const auto slots = slots_of({{}, {&row, 1}});
  for (size_t i = 0; i < slots.size(); ++i) {
    for (Planned* to : {&text, &picture, &all}) to->add(slots[i]->weights(i));
  }
  // Rows take turns with the prompts.
  for (size_t i = 0; static_cast<int64_t>(texts.size()) < rows; ++i) texts.push_back(texts[i]);
  const Shape one{latents[1], latents[2], latents[3]};
  DenoiserShape shape = model_->denoiser().shape(one, texts);
  shape.rows = rows;
  // Of jobs: latents, and what the sampler remembers.
  const int64_t of_jobs = sampler.jobs * (1 + static_cast<int64_t>(sampler.memories)) *
                          latents.numel() * static_cast<int64_t>(sizeof(float));
  const Program& denoiser = *denoiser_program(shape, {false, sampler}, slots).program;
  const int64_t of_denoiser = denoiser.memory().resident;  // inputs that it was given
  const Shape whole{1, latents[1], latents[2], latents[3]}, together = decoded_together(whole);
  const Program& decoder = *decoder_program(together).program;
  int64_t beside = of_jobs + of_denoiser;
  if (together !=
      whole) {  // the picture that tiles are put into, and the latents they are cut from
    const int64_t scale = model_->codec().scale();
    beside +=
        (3 * scale * scale + whole[1]) * whole[2] * whole[3] * static_cast<int64_t>(sizeof(float));
  }
  for (Planned* to : {&picture, &all}) {
    to->consider(denoiser, of_jobs);
    to->consider(decoder, beside);
    if (on_device) to->memory.borders += of_jobs;
  }
  PhaseMemory phases{text.memory, picture.memory, all.memory, 0, {}, {}, {}};
  for (size_t i = 0; i < slots.size(); ++i) {
    for (const auto& [name, weight] : slots[i]->weights(i)) phases.adapters += byte_size_of(weight);
  }
  phases.encoding = text.running();
  phases.denoising = picture.needs_of(denoiser, of_jobs);
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
    memory.library = std::max(memory.library, use.library);
    memory.borders = std::max(memory.borders, use.borders + use.resident);
  }
  arena_->expect(memory.arena + memory.workspace);
  return memory;
}

void Pipeline::remember(const std::string& prompt, Condition condition) {
  remembered_[prompt] = std::move(condition);
}

Condition Pipeline::encode(const std::string& prompt, float guidance) {
  Condition condition = encode(prompt);
  if (!model_->denoiser().reads_guidance()) return condition;
  Tensor told = Tensor::empty(DType::kF32, {1});
  told.mutable_as<float>()[0] = guidance;
  condition[kGuidanceOfCondition] = told;
  return condition;
}

Condition Pipeline::encode(const std::string& prompt) {
  if (const auto known = remembered_.find(prompt); known != remembered_.end()) {
    return known->second;
  }
  for (auto it = known_.begin(); it != known_.end(); ++it) {
    if (it->prompt != prompt) continue;
    known_.splice(known_.begin(), known_, it);
    return known_.front().condition;
  }
  encoder_results(prompt);
  return known_.front().condition;
}

std::vector<NamedTensors> Pipeline::encoder_results(const std::string& prompt) {
  const Conditioner& conditioner = model_->conditioner();
  const PromptTokens tokens = conditioner.tokenize(prompt);
  add_note(conditioner.note(prompt));
  need({.text = true, .picture = false});
  std::vector<NamedTensors> results;
  for (size_t i = 0; i < encoders_.size(); ++i) {
    Program& program = *encoder_program(i, conditioner.tokens(i, tokens)).program;
    results.push_back(program.run(conditioner.inputs(i, tokens)));
  }
  known_.remove_if([&](const Known& known) { return known.prompt == prompt; });
  if (known_.size() == kMostPrompts) known_.pop_back();
  known_.push_front({prompt, conditioner.condition(tokens, results)});
  return results;
}

// Positions and texts are the same for all steps of a picture: they go up once.
Program& Pipeline::prepare(const Shape& latents, std::span<const float> times, const Rows& rows,
                           const Use& use) {
  const auto count = rows.conditions.size();
  HT_ASSERT(times.size() == count);
  need({.text = false, .picture = true});
  const Denoiser& denoiser = model_->denoiser();
  std::vector<int64_t> texts;
  for (const Condition* condition : rows.conditions) {
    texts.push_back(condition->at("text").shape()[0]);
  }
  const DenoiserShape shape = denoiser.shape({latents[1], latents[2], latents[3]}, texts);
  const auto slots = slots_of(rows);
  Entry& entry = denoiser_program(shape, use, slots);
  Program& program = *entry.program;

  std::vector<const std::byte*> wanted;
  for (const Condition* condition : rows.conditions) {
    for (const auto& [name, tensor] : *condition) wanted.push_back(tensor.address());
  }
  if (entry.bound != wanted) {
    for (const auto& [name, tensor] : denoiser.inputs(shape, rows.conditions)) {
      program.set_input(name, tensor);
    }
    entry.bound = wanted;
    entry.held.clear();
    for (const Condition* condition : rows.conditions) entry.held.push_back(*condition);
  }
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    std::vector<float> strengths;
    for (const AdapterChoices* row : rows.adapters) {
      strengths.push_back(strength_of(*row, slots[slot]));
    }
    program.set_input(lora_strength_name(slot), slots[slot]->lora().strengths(strengths));
  }
  Tensor time = Tensor::empty(DType::kF32, {static_cast<int64_t>(count)});
  std::copy(times.begin(), times.end(), time.mutable_as<float>().begin());
  program.set_input("time", time);
  program.set_observer(observer_);
  return program;
}

Tensor Pipeline::predict(const Tensor& latents, std::span<const SamplerStep* const> at,
                         const Rows& rows) {
  std::vector<float> times;
  for (const SamplerStep* step : at) times.push_back(model_->denoiser().time(*step));
  Program& program = prepare(latents.shape(), times, rows, {});
  program.set_input("latents", latents);
  program.run();
  return program.output("sample");
}

void Pipeline::run_step(const SamplerGraph& sampler, const Rows& rows, std::span<const float> times,
                        std::span<const Tensor> latents, const UseProgram& give,
                        const UseProgram& take) {
  const DeviceGuard guard(model_->options().stream.device);
  Program& program = prepare(latents[0].shape(), times, rows, {false, sampler});
  for (size_t i = 0; i < latents.size(); ++i) {
    program.set_input_rows("latents", static_cast<int64_t>(i), latents[i]);
  }
  give(program);
  program.run();
  take(program);
}

Tensor Pipeline::place(const Tensor& tensor) const {
  DeviceContext* device = model_->options().stream.device;
  const auto memory = device != nullptr ? device->allocate(tensor.byte_size(), "latents")
                                        : Storage::allocate(tensor.byte_size());
  Tensor placed(memory, 0, tensor.dtype(), tensor.shape());
  if (device != nullptr) {
    device->upload(memory->address(), tensor.bytes());
  } else {
    std::copy(tensor.bytes().begin(), tensor.bytes().end(), memory->address());
  }
  return placed;
}

Tensor Pipeline::fetch(const Tensor& tensor) const {
  Tensor copy = Tensor::empty(tensor.dtype(), tensor.shape());
  DeviceContext* device = model_->options().stream.device;
  if (device != nullptr) {
    device->download(copy.mutable_bytes(), tensor.address());
  } else {
    std::copy(tensor.bytes().begin(), tensor.bytes().end(), copy.mutable_bytes().begin());
  }
  return copy;
}

Tensor Pipeline::predict(const Tensor& latents, const SamplerStep& at, const Condition& condition) {
  const SamplerStep* step = &at;
  const Condition* row = &condition;
  const AdapterChoices* adapters = &adapters_;
  return predict(latents, {&step, 1}, {{&row, 1}, {&adapters, 1}});
}

BlockOutputs Pipeline::block_outputs(const Tensor& latents, const SamplerStep& at,
                                     const Condition& condition) {
  const float time = model_->denoiser().time(at);
  const Condition* row = &condition;
  const AdapterChoices* adapters = &adapters_;
  Program& program =
      prepare(latents.shape(), {&time, 1}, {{&row, 1}, {&adapters, 1}}, {true, std::nullopt});
  program.set_input("latents", latents);
  program.run();
  BlockOutputs blocks;
  for (const Region& region : program.graph().regions()) {
    blocks.emplace_back(region.name, as_float(program.output(region.name)));
  }
  return blocks;
}

Tensor Pipeline::decode(const Tensor& latents) {
  need({.text = false, .picture = true});
  // What products of the steps packed operands into is free, but not the system's again: decoding
  // is where the most memory is needed.
  give_back_freed_memory();
  const Shape& whole = latents.shape();
  const auto decode_one = [&](const Tensor& part) {
    return decoder_program(part.shape()).program->run({{"latents", part}}).at("image");
  };
  const Shape together = decoded_together(whole);
  if (together == whole) return decode_one(latents);
  return decode_tiles(fetch(latents), model_->codec().scale(), *tiles_, decode_one);
}

Shape Pipeline::decoded_together(const Shape& latents) const {
  if (!tiles_) return latents;
  const int64_t h = tile_row(latents[2], *tiles_).size, w = tile_row(latents[3], *tiles_).size;
  if (h == latents[2] && w == latents[3]) return latents;
  return {1, latents[1], h, w};
}

Tensor Pipeline::encode_pictures(const Tensor& pictures) {
  need({.text = false, .picture = true});
  return as_float(
      picture_program(pictures.shape()).program->run({{"image", pictures}}).at("latents"));
}

void Pipeline::observe_linears(LinearObserver observer) {
  HT_ASSERT(!model_->options().compile);
  observer_ = std::move(observer);
}

void Pipeline::set_recipe(const std::optional<QuantizeRecipe>& recipe,
                          const WeightQuantizer& quantizer) {
  HT_ASSERT(!takes_turns_);
  denoisers_.clear();
  model_ = loaded_->with_recipe(recipe, quantizer);
}

}  // namespace halftone
