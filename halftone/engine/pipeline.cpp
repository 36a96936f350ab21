#include "halftone/engine/pipeline.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/runtime/devices.h"
#include "halftone/tensor/float_values.h"

namespace halftone {
namespace {

constexpr size_t kMostPrograms = 8, kMostPrompts = 8;

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
                                 const Slots& adapters, const Build& build,
                                 const std::optional<Cut>& cut, AdaptedPart adapted) {
  for (auto it = programs.begin(); it != programs.end(); ++it) {
    if (it->key != key) continue;
    programs.splice(programs.begin(), programs, it);
    return programs.front();
  }
  if (programs.size() == kMostPrograms) programs.pop_back();
  const LoadOptions& load = model_->options();
  CompileOptions how = part.compile_options();
  how.cut = cut;
  Weights with_adapters;
  for (size_t slot = 0; slot < adapters.size(); ++slot) {
    how.lora.push_back(adapters[slot]->lora().sites(adapted));
    with_adapters.merge(adapters[slot]->weights(slot, adapted));
  }
  if (!adapters.empty()) with_adapters.insert(part.weights().begin(), part.weights().end());
  const Weights& weights = adapters.empty() ? part.weights() : with_adapters;
  const auto graph = compile(*build(), how, *load.kernels, load.stream).graph;
  const ProgramOptions options{load.kernels, load.stream, load.compile, cancelled_,
                               model_->is_imagined()};
  programs.push_front(
      {key, std::make_unique<Program>(graph, weights, options, arena_), {}, {}, adapters});
  ++built_;
  for (const std::string& note : programs.front().program->notes()) add_note(note);
  return programs.front();
}

void Pipeline::add_note(const std::string& note) {
  if (note.empty()) return;
  if (std::find(notes_.begin(), notes_.end(), note) == notes_.end()) notes_.push_back(note);
}

Pipeline::Entry& Pipeline::encoder_program(size_t index, int64_t tokens, const Slots& adapters) {
  std::string key = std::to_string(tokens);
  for (const auto& adapter : adapters) key += fmt::format(" {}", fmt::ptr(adapter.get()));
  const auto build = [&] {
    return model_->conditioner().build(index, tokens, {model_->text_activations(), false});
  };
  return entry(encoders_[index], key, model_->encoder_part(index), adapters, build, {}, index);
}

Pipeline::Entry& Pipeline::denoiser_program(const DenoiserShape& shape, const Use& use,
                                            const Slots& adapters) {
  std::string key = shape.str() + (use.tap_blocks ? " tapped" : "");
  if (!use.skip_blocks.empty()) key += fmt::format(" without {}", fmt::join(use.skip_blocks, ","));
  for (const auto& adapter : adapters) key += fmt::format(" {}", fmt::ptr(adapter.get()));
  if (use.sampler) {
    key +=
        fmt::format(" sampler {} {} {} {}", static_cast<int>(use.sampler->rule),
                    use.sampler->memories, use.sampler->noise, !use.sampler->skip_blocks.empty());
  }
  const auto build = [&] {
    const auto graph = model_->denoiser().build(
        shape,
        {model_->options().activations, use.tap_blocks, use.part.has_value(), use.skip_blocks});
    if (use.part) add_cache(*graph);
    if (use.sampler) add_sampler(*graph, *use.sampler);
    return graph;
  };
  const ModelPart& weights = model_->denoiser_part();
  if (!use.part) return entry(denoisers_, key, weights, adapters, build);
  return entry(cached_parts_[static_cast<size_t>(*use.part)], key, weights, adapters, build,
               cut_for_cache(*use.part));
}

std::vector<const Pipeline::Entry*> Pipeline::step_programs(const DenoiserShape& shape,
                                                            const SamplerGraph& sampler,
                                                            const Slots& adapters, bool caches) {
  if (!caches) return {&denoiser_program(shape, {.sampler = sampler}, adapters)};
  const auto part = [&](CachedPart which, int64_t rows) {
    DenoiserShape own = shape;
    own.rows = rows;
    return &denoiser_program(own, Use{.sampler = sampler}.of(which), adapters);
  };
  std::vector<const Entry*> programs = {part(CachedPart::kFirst, shape.rows),
                                        part(CachedPart::kRest, shape.rows)};
  for (int64_t rows = batches_of(shape.rows)[0]; rows > 0; rows /= 2) {
    programs.push_back(part(CachedPart::kBlocks, rows));
  }
  return programs;
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
  for (Programs& programs : cached_parts_) programs.clear();
  arena_->release();
  model_ = model_->with_placed({});
  give_back_freed_memory();
  model_ = model_->with_placed(parts);
}

void Pipeline::remember(const std::string& prompt, Condition condition) {
  remembered_[prompt] = std::move(condition);
}

Condition Pipeline::tell(Condition condition, const Told& told) const {
  const Denoiser& denoiser = model_->denoiser();
  if (denoiser.reads_guidance()) {
    Tensor guidance = Tensor::empty(DType::kF32, {1});
    guidance.mutable_as<float>()[0] = told.guidance;
    condition[kGuidanceOfCondition] = guidance;
  }
  if (denoiser.reads_sizes()) condition[kSizesOfCondition] = told.sizes.tensor();
  return condition;
}

Condition Pipeline::encode(const std::string& prompt) { return encode(prompt, adapters_); }

Condition Pipeline::encode(const std::string& prompt, const Told& told) {
  return encode(prompt, told, adapters_);
}

Condition Pipeline::encode(const std::string& prompt, const Told& told,
                           const AdapterChoices& adapters) {
  return tell(encode(prompt, adapters), told);
}

Condition Pipeline::encode_negative(const std::optional<std::string>& prompt, const Told& told) {
  return encode_negative(prompt, told, adapters_);
}

Condition Pipeline::encode_negative(const std::optional<std::string>& prompt, const Told& told,
                                    const AdapterChoices& adapters) {
  if (prompt) return encode(*prompt, told, adapters);
  if (auto none = model_->conditioner().without_negative()) return tell(std::move(*none), told);
  return encode("", told, adapters);
}

Condition Pipeline::encode(const std::string& prompt, const AdapterChoices& adapters) {
  const AdapterChoices of_text = text_adapters(adapters);
  if (of_text.empty()) {
    const auto known = remembered_.find(prompt);
    if (known != remembered_.end()) return known->second;
  }
  for (auto it = known_.begin(); it != known_.end(); ++it) {
    if (it->prompt != prompt || it->adapters != of_text) continue;
    known_.splice(known_.begin(), known_, it);
    return known_.front().condition;
  }
  encoder_results(prompt, of_text);
  return known_.front().condition;
}

std::vector<NamedTensors> Pipeline::encoder_results(const std::string& prompt) {
  return encoder_results(prompt, text_adapters(adapters_));
}

std::vector<NamedTensors> Pipeline::encoder_results(const std::string& prompt,
                                                    const AdapterChoices& adapters) {
  const Conditioner& conditioner = model_->conditioner();
  const PromptTokens tokens = conditioner.tokenize(prompt);
  add_note(conditioner.note(prompt));
  need({.text = true, .picture = false});
  Slots slots;
  for (const AdapterChoice& choice : adapters) slots.push_back(choice.adapter);
  std::vector<NamedTensors> results;
  for (size_t i = 0; i < encoders_.size(); ++i) {
    Program& program = *encoder_program(i, conditioner.tokens(i, tokens), slots).program;
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      if (!program.reads(lora_strength_name(slot))) continue;
      program.set_input(lora_strength_name(slot),
                        slots[slot]->lora().strengths({&adapters[slot].strength, 1}, i));
    }
    results.push_back(program.run(conditioner.inputs(i, tokens)));
  }
  known_.remove_if(
      [&](const Known& known) { return known.prompt == prompt && known.adapters == adapters; });
  if (known_.size() == kMostPrompts) known_.pop_back();
  known_.push_front({prompt, adapters, conditioner.condition(tokens, results)});
  return results;
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
  if (tensor.device() == Device{}) return tensor.clone();
  Tensor copy = Tensor::empty(tensor.dtype(), tensor.shape());
  model_->options().stream.device->download(copy.mutable_bytes(), tensor.address());
  return copy;
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
  return as_f32(
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
  for (Programs& programs : cached_parts_) programs.clear();
  model_ = loaded_->with_recipe(recipe, quantizer);
}

}  // namespace halftone
