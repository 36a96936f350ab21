#include "halftone/training/lora_trainer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "halftone/base/error.h"
#include "halftone/base/gaussian.h"
#include "halftone/base/text.h"
#include "halftone/training/train_graph.h"

namespace halftone {
namespace {

// What numbers are drawn for: streams of a seed that have none in common.
enum class Draw : uint8_t { kInitial = 1, kOrder, kNoise, kStrength };

PhiloxKey key_of(uint64_t seed, Draw what, uint64_t when, uint64_t which) {
  return {seed, static_cast<uint64_t>(what) << 56 | when << 24 | which};
}

// As PEFT begins: A evenly within 1 / sqrt(in), B zero, so that nothing changes before the first
// step.
Tensor initial_down(const Shape& shape, PhiloxKey key) {
  Tensor down = Tensor::empty(DType::kF32, shape);
  const float bound = 1.0f / std::sqrt(static_cast<float>(shape[1]));
  auto values = down.mutable_as<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    const double u = (philox_word(key, i) + 0.5) * 0x1p-32;
    values[i] = static_cast<float>((2 * u - 1) * bound);
  }
  return down;
}

}  // namespace

LoraTrainer::LoraTrainer(std::shared_ptr<const Model> model, std::vector<TrainExample> examples,
                         const TrainRules& rules)
    : model_(std::move(model)),
      examples_(std::move(examples)),
      rules_(rules),
      objective_(model_->sampling().scheduler, rules.sigmas, rules.min_snr) {
  const auto need = [](bool fine, const char* field, const char* why) {
    if (!fine) throw Error(ErrorCode::kInvalidInput, field, "{}", why);
  };
  need(!examples_.empty(), "data", "holds nothing to train on");
  need(rules_.rank >= 1, "rank", "is below 1");
  need(rules_.steps >= 1 && rules_.batch >= 1 && rules_.accumulate >= 1, "steps",
       "and batch are at least 1");
  std::map<std::string, Tensor> initial;
  sites_.rank = rules_.rank;
  uint64_t index = 0;
  for (const LinearInfo& linear : model_->linears()) {
    const bool wanted =
        rules_.targets.empty() ||
        std::any_of(rules_.targets.begin(), rules_.targets.end(),
                    [&](const std::string& p) { return glob_match(p, linear.weight); });
    if (!wanted) continue;
    sites_.weights.insert(linear.weight);
    initial.emplace(lora_down_name(linear.weight),
                    initial_down({rules_.rank, linear.shape[1]},
                                 key_of(rules_.seed, Draw::kInitial, 0, index++)));
    initial.emplace(lora_up_name(linear.weight),
                    Tensor::zeros(DType::kF32, {linear.shape[0], rules_.rank}));
  }
  need(!sites_.weights.empty(), "targets", "match no linear of the model's blocks");
  const LoadOptions& load = model_->options();
  parameters_ = std::make_unique<Parameters>(initial, *load.kernels, load.stream);
}

// Every example once, in an order of its own in every epoch; examples of one size go together.
void LoraTrainer::shuffle() {
  std::vector<std::pair<uint32_t, size_t>> order;
  for (size_t i = 0; i < examples_.size(); ++i) {
    const PhiloxKey key = key_of(rules_.seed, Draw::kOrder, static_cast<uint64_t>(epoch_), 0);
    order.emplace_back(philox_word(key, i), i);
  }
  std::sort(order.begin(), order.end());
  std::map<std::string, std::vector<size_t>> open;  // by size
  batches_.clear();
  for (const auto& [word, i] : order) {
    auto& batch = open[examples_[i].latents.shape().str()];
    batch.push_back(i);
    if (static_cast<int64_t>(batch.size()) < rules_.batch) continue;
    batches_.push_back(std::move(batch));
    batch.clear();
  }
  for (auto& [size, batch] : open) {
    if (batch.empty()) continue;
    // Filled up with its own, so that a size has one program.
    for (size_t i = 0; static_cast<int64_t>(batch.size()) < rules_.batch; ++i) {
      batch.push_back(batch[i]);
    }
    batches_.push_back(std::move(batch));
  }
  std::reverse(batches_.begin(), batches_.end());
  ++epoch_;
}

std::vector<size_t> LoraTrainer::next_batch() {
  if (batches_.empty()) shuffle();
  std::vector<size_t> batch = std::move(batches_.back());
  batches_.pop_back();
  return batch;
}

LoraTrainer::Entry& LoraTrainer::program_for(const std::vector<size_t>& batch) {
  std::vector<int64_t> texts;
  for (const size_t i : batch) texts.push_back(examples_[i].condition.at("text").shape()[0]);
  const Denoiser& denoiser = model_->denoiser();
  const DenoiserShape shape = denoiser.shape(examples_[batch[0]].latents.shape(), texts);
  const auto found = programs_.find(shape.str());
  if (found != programs_.end()) return found->second;

  std::vector<std::string> trained;
  for (const auto& [name, weight] : parameters_->weights()) trained.push_back(name);
  const LoadOptions& load = model_->options();
  CompileOptions how = model_->denoiser_part().compile_options();
  how.lora = {sites_};
  how.extend = [&](Graph& graph) { add_loss(graph, trained); };
  const auto plain = denoiser.build(shape, {load.activations, false});
  const auto graph = compile(*add_noising(*plain), how, *load.kernels, load.stream).graph;
  Weights weights = model_->denoiser_part().weights();
  weights.insert(parameters_->weights().begin(), parameters_->weights().end());
  const ProgramOptions options{load.kernels, load.stream, load.compile, load.cancelled};
  auto program = std::make_unique<Program>(graph, weights, options, arena_);
  for (const std::string& note : program->notes()) {
    if (std::find(notes_.begin(), notes_.end(), note) == notes_.end()) notes_.push_back(note);
  }
  return programs_.emplace(shape.str(), Entry{shape, std::move(program)}).first->second;
}

// The loss of a batch; its gradients are added to those of the step.
double LoraTrainer::run(const std::vector<size_t>& batch, int64_t part) {
  Entry& entry = program_for(batch);
  const auto rows = static_cast<int64_t>(batch.size());
  std::vector<const Condition*> conditions;
  for (const size_t i : batch) conditions.push_back(&examples_[i].condition);
  auto inputs = model_->denoiser().inputs(entry.shape, conditions);
  const Shape& one = examples_[batch[0]].latents.shape();
  std::vector<int64_t> dims = {rows};
  for (int i = 0; i < one.rank(); ++i) dims.push_back(one[i]);
  Tensor latents = Tensor::empty(DType::kF32, Shape(dims));
  Tensor time = Tensor::empty(DType::kF32, {rows}), weight = Tensor::empty(DType::kF32, {rows});
  Tensor noising = Tensor::empty(DType::kF32, {rows, 4}),
         keys = Tensor::empty(DType::kI32, {rows, 4});
  Tensor strength = Tensor::empty(DType::kF32, {rows, rules_.rank});
  std::ranges::fill(strength.mutable_as<float>(), rules_.alpha / static_cast<float>(rules_.rank));
  for (size_t r = 0; r < batch.size(); ++r) {
    const auto from = examples_[batch[r]].latents.as<float>();
    std::copy(from.begin(), from.end(),
              latents.mutable_as<float>().begin() + static_cast<std::ptrdiff_t>(r * from.size()));
    const auto at = static_cast<uint64_t>(part) * batch.size() + r;
    const auto now = static_cast<uint64_t>(step_);
    const Noising drawn = objective_.draw(key_of(rules_.seed, Draw::kStrength, now, at));
    SamplerStep step;
    step.sigma = drawn.sigma;
    step.timestep = drawn.timestep;
    time.mutable_as<float>()[r] = model_->denoiser().time(step);
    weight.mutable_as<float>()[r] = drawn.weight;
    const float factors[] = {drawn.latents, drawn.noise, drawn.target_latents, drawn.target_noise};
    std::copy(std::begin(factors), std::end(factors),
              noising.mutable_as<float>().begin() + static_cast<std::ptrdiff_t>(4 * r));
    put_key(key_of(rules_.seed, Draw::kNoise, now, at),
            keys.mutable_as<int32_t>().subspan(4 * r, 4));
  }
  inputs["latents"] = latents;
  inputs["time"] = time;
  inputs["loss_weight"] = weight;
  inputs["noising"] = noising;
  inputs["noise_keys"] = keys;
  inputs[lora_strength_name(0)] = strength;
  for (const auto& [name, tensor] : inputs) entry.program->set_input(name, tensor);
  entry.program->run();
  const double loss = entry.program->output("loss").as<float>()[0];
  parameters_->take_gradients(*entry.program, part > 0);
  return loss;
}

double LoraTrainer::rate() const {
  const double highest = rules_.optimizer.learning_rate;
  const auto at = static_cast<double>(step_ + 1), warmup = static_cast<double>(rules_.warmup);
  if (at <= warmup) return highest * at / warmup;
  if (rules_.rate == RateShape::kConstant) return highest;
  const double left = std::max(1.0, static_cast<double>(rules_.steps) - warmup);
  return highest * 0.5 * (1 + std::cos(std::numbers::pi * (at - 1 - warmup) / left));
}

TrainStep LoraTrainer::step() {
  HT_ASSERT(!done());
  double loss = 0;
  for (int64_t part = 0; part < rules_.accumulate; ++part) loss += run(next_batch(), part);
  const auto parts = static_cast<double>(rules_.accumulate);
  TrainStep made;
  made.loss = loss / parts;
  made.gradient_norm = parameters_->gradient_norm() / parts;
  made.learning_rate = rate();
  if (!std::isfinite(made.loss) || !std::isfinite(made.gradient_norm)) {
    throw Error(ErrorCode::kInvalidInput, "training", "the loss of step {} is {}, its gradient {}",
                step_ + 1, made.loss, made.gradient_norm);
  }
  AdamWArgs how = rules_.optimizer;
  how.learning_rate = static_cast<float>(made.learning_rate);
  how.step = step_ + 1;
  const bool clips = rules_.clip > 0 && made.gradient_norm > rules_.clip;
  how.gradient_scale = static_cast<float>((clips ? rules_.clip / made.gradient_norm : 1.0) / parts);
  parameters_->step(how);
  made.step = ++step_;
  return made;
}

TrainedLora LoraTrainer::adapters() const {
  TrainedLora lora;
  lora.strength = rules_.alpha / static_cast<float>(rules_.rank);
  lora.folder = std::string(model_->denoiser().folder());
  const auto values = parameters_->values();
  for (const std::string& weight : sites_.weights) {
    lora.modules[weight] = {values.at(lora_down_name(weight)), values.at(lora_up_name(weight))};
  }
  return lora;
}

}  // namespace halftone
