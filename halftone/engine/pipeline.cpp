#include "halftone/engine/pipeline.h"

#include <fmt/ranges.h>

#include <algorithm>

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
  const ProgramOptions options{load.kernels, load.stream, load.compile, cancelled_};
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
    return model_->conditioner().build(index, tokens, {model_->options().activations, false});
  });
}

Pipeline::Entry& Pipeline::denoiser_program(
    const DenoiserShape& shape, const Use& use,
    std::span<const std::shared_ptr<const Adapter>> adapters) {
  std::string key = shape.str() + (use.tap_blocks ? " tapped" : "");
  if (!use.skip_blocks.empty()) key += fmt::format(" without {}", fmt::join(use.skip_blocks, ","));
  for (const auto& adapter : adapters) key += fmt::format(" {}", fmt::ptr(adapter.get()));
  if (use.sampler) {
    key +=
        fmt::format(" sampler {} {} {} {}", static_cast<int>(use.sampler->rule),
                    use.sampler->memories, use.sampler->noise, !use.sampler->skip_blocks.empty());
  }
  return entry(denoisers_, key, model_->denoiser_part(), adapters, [&] {
    const auto graph = model_->denoiser().build(
        shape, {model_->options().activations, use.tap_blocks, use.skip_blocks});
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

ModelMemory Pipeline::plan(const Shape& latents, const SamplerGraph& sampler,
                           std::span<const std::string> prompts, const AdapterChoices& adapters) {
  const int64_t rows = sampler.jobs * (sampler.rule == GuidanceRule::kNone ? 1 : 2);
  ModelMemory memory;
  for (size_t i = 0; i < encoders_.size(); ++i) {
    if (model_->has_encoders()) add_weights(model_->encoder_part(i).weights(), memory);
  }
  add_weights(model_->denoiser_part().weights(), memory);
  add_weights(model_->codec_part().weights(), memory);
  const bool on_device = model_->options().stream.device != nullptr;
  std::set<const Program*> seen;
  // `beside` is what others hold meanwhile.
  const auto consider = [&](const Entry& entry, int64_t beside = 0) {
    const MemoryUse& use = entry.program->memory();
    if (on_device) {  // results lie among the values, and inputs of all programs stay
      if (seen.insert(entry.program.get()).second) memory.borders += use.resident;
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
  };
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
      consider(encoder_program(i, conditioner.tokens(i, tokens)));
    }
  }
  const AdapterChoices* row = &adapters;
  const auto slots = slots_of({{}, {&row, 1}});
  for (size_t i = 0; i < slots.size(); ++i) add_weights(slots[i]->weights(i), memory);
  // Rows take turns with the prompts.
  for (size_t i = 0; static_cast<int64_t>(texts.size()) < rows; ++i) texts.push_back(texts[i]);
  const Shape one{latents[1], latents[2], latents[3]};
  DenoiserShape shape = model_->denoiser().shape(one, texts);
  shape.rows = rows;
  // Of jobs: latents, and what the sampler remembers.
  const bool skips = !sampler.skip_blocks.empty();
  const int64_t of_jobs = sampler.jobs *
                          (1 + static_cast<int64_t>(sampler.memories) + (skips ? 1 : 0)) *
                          latents.numel() * static_cast<int64_t>(sizeof(float));
  const auto consider_denoiser = [&](const DenoiserShape& of, const Use& use, int64_t given) {
    const Entry& denoiser = denoiser_program(of, use, slots);
    consider(denoiser, of_jobs + given);
    return given + denoiser.program->memory().resident;  // inputs that it was given
  };
  int64_t of_denoiser = 0;
  if (skips) {  // other steps than those, and the prediction before them
    SamplerGraph usual = sampler;
    usual.skip_blocks.clear();
    of_denoiser = consider_denoiser(shape, {.sampler = usual}, of_denoiser);
    DenoiserShape first = shape;
    first.rows = sampler.jobs;
    of_denoiser = consider_denoiser(first, {.skip_blocks = sampler.skip_blocks}, of_denoiser);
  }
  of_denoiser = consider_denoiser(shape, {.sampler = sampler}, of_denoiser);
  consider(decoder_program({1, latents[1], latents[2], latents[3]}), of_jobs + of_denoiser);
  arena_->expect(memory.arena + memory.workspace);
  if (on_device) memory.borders += of_jobs;
  return memory;
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
  const Conditioner& conditioner = model_->conditioner();
  const PromptTokens tokens = conditioner.tokenize(prompt);
  add_note(conditioner.note(prompt));
  std::vector<NamedTensors> results;
  for (size_t i = 0; i < encoders_.size(); ++i) {
    Program& program = *encoder_program(i, conditioner.tokens(i, tokens)).program;
    results.push_back(program.run(conditioner.inputs(i, tokens)));
  }
  if (known_.size() == kMostPrompts) known_.pop_back();
  known_.push_front({prompt, conditioner.condition(tokens, results)});
  return known_.front().condition;
}

// Positions and texts are the same for all steps of a picture: they go up once.
Program& Pipeline::prepare(const Shape& latents, std::span<const float> times, const Rows& rows,
                           const Use& use) {
  const auto count = rows.conditions.size();
  HT_ASSERT(times.size() == count);
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
  const auto jobs = static_cast<size_t>(sampler.jobs);
  std::vector<Tensor> skipped;
  if (!sampler.skip_blocks.empty()) {
    const Rows first{rows.conditions.first(jobs), rows.adapters.first(jobs)};
    skipped = predict_without(sampler.skip_blocks, first, times.first(jobs), latents.first(jobs));
  }
  Program& program = prepare(latents[0].shape(), times, rows, {.sampler = sampler});
  for (size_t i = 0; i < latents.size(); ++i) {
    program.set_input_rows("latents", static_cast<int64_t>(i), latents[i]);
  }
  for (size_t i = 0; i < skipped.size(); ++i) {
    program.set_input_rows("skipped", static_cast<int64_t>(i), skipped[i]);
  }
  give(program);
  program.run();
  take(program);
}

std::vector<Tensor> Pipeline::predict_without(const std::set<int64_t>& blocks, const Rows& rows,
                                              std::span<const float> times,
                                              std::span<const Tensor> latents) {
  Program& program = prepare(latents[0].shape(), times, rows, {.skip_blocks = blocks});
  for (size_t i = 0; i < latents.size(); ++i) {
    program.set_input_rows("latents", static_cast<int64_t>(i), latents[i]);
  }
  program.run();
  std::vector<Tensor> predictions;
  for (size_t i = 0; i < latents.size(); ++i) {
    predictions.push_back(place(Tensor::zeros(DType::kF32, latents[i].shape())));
    program.copy_output_rows("sample", static_cast<int64_t>(i), predictions.back());
  }
  return predictions;
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
      prepare(latents.shape(), {&time, 1}, {{&row, 1}, {&adapters, 1}}, {.tap_blocks = true});
  program.set_input("latents", latents);
  program.run();
  BlockOutputs blocks;
  for (const Region& region : program.graph().regions()) {
    blocks.emplace_back(region.name, as_float(program.output(region.name)));
  }
  return blocks;
}

Tensor Pipeline::decode(const Tensor& latents) {
  // What products of the steps packed operands into is free, but not the system's again: decoding
  // is where the most memory is needed.
  give_back_freed_memory();
  return decoder_program(latents.shape()).program->run({{"latents", latents}}).at("image");
}

Tensor Pipeline::encode_pictures(const Tensor& pictures) {
  return as_float(
      picture_program(pictures.shape()).program->run({{"image", pictures}}).at("latents"));
}

void Pipeline::observe_linears(LinearObserver observer) {
  HT_ASSERT(!model_->options().compile);
  observer_ = std::move(observer);
}

void Pipeline::set_recipe(const std::optional<QuantizeRecipe>& recipe,
                          const WeightQuantizer& quantizer) {
  denoisers_.clear();
  model_ = loaded_->with_recipe(recipe, quantizer);
}

}  // namespace halftone
