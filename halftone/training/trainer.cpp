#include "halftone/training/trainer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <numbers>
#include <set>

#include "halftone/base/error.h"
#include "halftone/base/gaussian.h"
#include "halftone/base/text.h"
#include "halftone/tensor/float_values.h"
#include "halftone/training/text_training.h"

namespace halftone {
namespace {

// As PEFT begins: A evenly within 1 / sqrt(in), B zero, so that nothing changes before the first
// step.
Tensor initial_down(const Shape& shape, PhiloxKey key) {
  Tensor down = Tensor::empty(DType::kF32, shape);
  const float bound = 1.0f / std::sqrt(static_cast<float>(shape[1]));
  auto values = down.mutable_as<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>((2 * draw_uniform(key, i) - 1) * bound);
  }
  return down;
}

std::vector<std::string> sizes_of(const std::vector<TrainExample>& examples) {
  if (examples.empty()) throw Error(ErrorCode::kInvalidInput, "data", "holds nothing to train on");
  std::vector<std::string> sizes;
  for (const TrainExample& example : examples) sizes.push_back(example.latents.shape().str());
  return sizes;
}

bool is_target(const TrainRules& rules, const std::string& weight) {
  const auto matches = [&](const std::string& p) { return glob_match(p, weight); };
  return rules.targets.empty() || std::ranges::any_of(rules.targets, matches);
}
[[noreturn]] void refuse_targets(const TrainRules& rules, const char* what) {
  throw Error(ErrorCode::kUsage, "targets", "'{}' match no {}", fmt::join(rules.targets, "', '"),
              what);
}

int64_t input_bytes(const Graph& graph) {
  int64_t sum = 0;
  for (const auto& [name, value] : graph.inputs()) {
    sum += value.shape().checked_bytes(value.dtype()).value();
  }
  return sum;
}

int64_t text_tokens(const Condition& condition) { return condition.at("text").shape()[0]; }

}  // namespace

std::string to_string(TrainMode mode) {
  return mode == TrainMode::kLora ? "lora" : mode == TrainMode::kFull ? "full" : "qat";
}

std::vector<LinearInfo> adapter_sites(const Model& model, const TrainRules& rules) {
  const std::vector<LinearInfo> all = model.whole_linears();
  if (rules.targets.empty()) return all;
  std::vector<LinearInfo> sites;
  for (const LinearInfo& linear : all) {
    if (is_target(rules, linear.weight)) sites.push_back(linear);
  }
  if (sites.empty()) refuse_targets(rules, "linear of the model's blocks");
  return sites;
}

std::vector<std::string> trained_weights(const Model& model, const TrainRules& rules) {
  std::vector<std::string> names;
  for (const auto& [name, weight] : model.originals()) {
    if (std::holds_alternative<QuantizedTensor>(weight)) {
      throw Error(ErrorCode::kInvalidInput, name,
                  "is stored in {}: what trains weights starts from a model in high precision",
                  std::get<QuantizedTensor>(weight).format.name);
    }
    if (is_target(rules, name) && model.denoiser().trains(name)) names.push_back(name);
  }
  if (names.empty()) refuse_targets(rules, "weight of the model");
  return names;
}

Trainer::Trainer(std::shared_ptr<const Model> model, std::vector<TrainExample> examples,
                 const TrainRules& rules, Condition no_caption, Collective* processes,
                 std::function<bool()> cancelled)
    : processes_(processes != nullptr ? *processes : alone_),
      model_(std::move(model)),
      cancelled_(std::move(cancelled)),
      examples_(std::move(examples)),
      rules_(rules),
      objective_(model_->sampling().scheduler, rules.sigmas, rules.min_snr),
      no_caption_(std::move(no_caption)),
      order_(sizes_of(examples_), std::max<int64_t>(1, rules.batch) * processes_.size(),
             rules.seed) {
  const auto need = [](bool fine, const char* field, const char* why) {
    if (!fine) throw Error(ErrorCode::kUsage, field, "{}", why);
  };
  need(rules_.rank >= 1, "rank", "is below 1");
  need(rules_.steps >= 1, "steps", "is below 1");
  need(rules_.batch >= 1, "batch", "is below 1");
  need(rules_.accumulate >= 1, "accumulate", "is below 1");
  need(rules_.caption_dropout >= 0 && rules_.caption_dropout <= 1, "caption-dropout",
       "is no share from 0 to 1");
  need(rules_.caption_dropout == 0 || !no_caption_.empty(), "caption-dropout",
       "needs what is shown instead of a caption");
  need(rules_.dropout >= 0 && rules_.dropout < 1, "dropout", "is no share from 0 to below 1");
  need(rules_.dropout == 0 || rules_.mode == TrainMode::kLora, "dropout", "is for mode lora");
  need(rules_.average >= 0 && rules_.average < 1, "ema", "is no number from 0 to below 1");
  need(rules_.min_snr == 0 || model_->sampling().scheduler.prediction != Prediction::kVelocity,
       "min-snr", "is for models that predict noise; this one predicts velocities");
  need(rules_.mode != TrainMode::kQat || !model_->report().formats.empty(), "precision",
       "is no format that weights are rounded to, which qat trains them for");
  need(!rules_.small_weights || rules_.mode != TrainMode::kLora, "weights",
       "in bf16 are for modes full and qat: adapters are small");
  need(!rules_.fp8_weight_gradients || rules_.mode != TrainMode::kLora, "weight-gradient",
       "is for modes full and qat");
  need(!rules_.fp8_weight_gradients || rules_.fp8_gradients, "weight-gradient",
       "in fp8 is for gradients in fp8: backward is to be fp8, too");
  need(!rules_.teacher || rules_.mode == TrainMode::kQat, "teacher", "is for mode qat");
  need(!rules_.check_gradients || !model_->report().formats.empty(), "check-gradients",
       "compares with a base in high precision, and this one is");
  const bool adapts = rules_.mode == TrainMode::kLora;
  need(!rules_.train_text || adapts, "train-text", "is for mode lora");
  if (rules_.train_text) check_trains_text(*model_);
  const std::map<std::string, Tensor> initial = adapts ? initial_adapters() : initial_weights();
  const LoadOptions& load = model_->options();
  const ParameterOptions how{rules_.small_moments, rules_.average > 0, rules_.small_weights};
  parameters_ = std::make_unique<Parameters>(initial, how, *load.kernels, load.stream);
  programs_ = std::make_unique<TrainPrograms>(model_, rules_, sites_, *parameters_, cancelled_);
  if (processes_.size() == 1) return;
  sums_ =
      std::make_unique<GradientSums>(*parameters_, processes_, load.stream,
                                     GradientSumRules{rules_.overlap, rules_.bucket}, cancelled_);
}

std::map<std::string, Tensor> Trainer::initial_adapters() {
  std::map<std::string, Tensor> initial;
  sites_.rank = rules_.rank;
  sites_.dropout = rules_.dropout;
  uint64_t index = 0;
  std::vector<LinearInfo> linears = adapter_sites(*model_, rules_);
  if (rules_.train_text) {
    const std::vector<LinearInfo> text = text_sites(*model_, rules_);
    linears.insert(linears.end(), text.begin(), text.end());
  }
  for (const LinearInfo& linear : linears) {
    sites_.weights.insert(linear.weight);
    initial.emplace(lora_down_name(linear.weight),
                    initial_down({rules_.rank, linear.shape[1]},
                                 draw_key(rules_.seed, Draw::kInitial, 0, index++)));
    initial.emplace(lora_up_name(linear.weight),
                    Tensor::zeros(DType::kF32, {linear.shape[0], rules_.rank}));
  }
  return initial;
}

std::map<std::string, Tensor> Trainer::initial_weights() const {
  std::map<std::string, Tensor> initial;
  for (const std::string& name : trained_weights(*model_, rules_)) {
    initial.emplace(name, std::get<Tensor>(model_->originals().at(name)));
  }
  return initial;
}

int64_t Trainer::parts() const {
  return static_cast<int64_t>(rules_.mode == TrainMode::kLora ? sites_.weights.size()
                                                              : parameters_->weights().size());
}

std::vector<Trainer::Row> Trainer::rows_of(const std::vector<size_t>& batch, int64_t part) const {
  std::vector<Row> rows;
  const auto own = batch.size() / static_cast<size_t>(processes_.size());
  const size_t first = own * static_cast<size_t>(processes_.rank());
  for (size_t r = first; r < first + own; ++r) {
    const TrainExample& example = examples_[batch[r]];
    const auto at = static_cast<uint64_t>(part) * batch.size() + r;
    const PhiloxKey key = draw_key(rules_.seed, Draw::kCaption, static_cast<uint64_t>(step_), at);
    const bool dropped = draw_uniform(key) < rules_.caption_dropout;
    rows.push_back({&example, dropped ? &no_caption_ : &example.condition, at});
  }
  return rows;
}

TrainPrograms::Entry& Trainer::program_for(TrainPass pass, const std::vector<Row>& rows) {
  std::vector<int64_t> texts;
  for (const Row& row : rows) texts.push_back(text_tokens(*row.condition));
  return programs_->get(pass, rows[0].example->latents.shape(), texts);
}

// Of each size, with the longest texts. On a device what programs are given stays there.
ModelMemory Trainer::plan() {
  std::map<std::string, std::vector<Row>> largest;
  for (const TrainExample& example : examples_) {
    std::vector<Row>& rows = largest[example.latents.shape().str()];
    rows.push_back({&example, &example.condition, 0});
    if (rules_.caption_dropout > 0) rows.push_back({&example, &no_caption_, 0});
  }
  ModelMemory memory;
  programs_->add_weights(memory);
  memory.owned_weights += parameters_->bytes();
  const bool on_device = model_->options().stream.device != nullptr;
  const auto add = [&](const TrainPrograms::Entry& entry) {
    for (const Program* program : {entry.program.get(), entry.teacher.get()}) {
      if (program == nullptr) continue;
      const MemoryUse& use = program->memory();
      if (use.in_arena() > memory.in_arena()) {
        memory.arena = use.arena;
        memory.workspace = use.workspace;
        memory.slots = use.slots;
      }
      memory.library = std::max(memory.library, use.library);
      // Programs hold what they were given last. What they give is copied out of the arena, but for
      // the loss.
      memory.borders += on_device ? use.resident : input_bytes(program->graph());
    }
  };
  for (auto& [name, rows] : largest) {
    std::ranges::sort(rows, std::greater(),
                      [](const Row& row) { return text_tokens(*row.condition); });
    rows.resize(static_cast<size_t>(rules_.batch), rows.back());
    add(program_for(TrainPass::kGradients, rows));
  }
  std::set<const TrainPrograms::Entry*> counted;
  for (const std::vector<Row>& rows : held_out_batches()) {
    const TrainPrograms::Entry& entry = program_for(TrainPass::kHeldOut, rows);
    if (counted.insert(&entry).second) add(entry);
  }
  if (rules_.check_gradients) {
    for (const TrainPass pass : {compared_pass(), TrainPass::kReference}) {
      add(program_for(pass, first_rows()));
    }
  }
  arena()->expect(memory.in_arena());
  return memory;
}

Tensor Trainer::dropout_keys(const std::vector<Row>& rows) const {
  Tensor keys = Tensor::empty(DType::kI32, {static_cast<int64_t>(rows.size()), 4});
  for (size_t r = 0; r < rows.size(); ++r) {
    put_key(draw_key(rules_.seed, Draw::kDropout, static_cast<uint64_t>(step_), rows[r].at),
            keys.mutable_as<int32_t>().subspan(4 * r, 4));
  }
  return keys;
}

double Trainer::run(TrainPrograms::Entry& entry, const std::vector<Row>& rows,
                    const Drawn& from_where, const RunFn& run_program) {
  std::vector<const Condition*> conditions;
  std::vector<Condition> told(rows.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    told[r] = *rows[r].condition;
    conditions.push_back(&told[r]);
    if (model_->denoiser().reads_guidance()) {
      // What is learnt is to hold without any.
      Tensor none = Tensor::empty(DType::kF32, {1});
      none.mutable_as<float>()[0] = 1;
      told[r][kGuidanceOfCondition] = none;
    }
    if (model_->denoiser().reads_sizes()) {
      // The example's, with whatever text; one that comes without was not cropped.
      const TrainExample& example = *rows[r].example;
      const auto known = example.condition.find(kSizesOfCondition);
      const int64_t scale = model_->codec().scale();
      told[r][kSizesOfCondition] = known != example.condition.end()
                                       ? known->second
                                       : PictureSizes::of(example.latents.shape()[2] * scale,
                                                          example.latents.shape()[1] * scale)
                                             .tensor();
    }
  }
  const Shape& one = rows[0].example->latents.shape();
  const auto count = static_cast<int64_t>(rows.size());
  auto inputs = model_->denoiser().inputs(entry.shape, conditions);
  if (rules_.train_text) give_captions(*model_, conditions, inputs);
  std::vector<int64_t> dims = {count};
  for (int i = 0; i < one.rank(); ++i) dims.push_back(one[i]);
  Tensor latents = Tensor::empty(DType::kF32, Shape(dims));
  Tensor time = Tensor::empty(DType::kF32, {count}), weight = Tensor::empty(DType::kF32, {count});
  Tensor noising = Tensor::empty(DType::kF32, {count, 4}),
         keys = Tensor::empty(DType::kI32, {count, 4});
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto key = [&](Draw what) {
      return draw_key(from_where.seed, what, from_where.when, rows[r].at);
    };
    const auto from = rows[r].example->latents.as<float>();
    std::copy(from.begin(), from.end(),
              latents.mutable_as<float>().begin() + static_cast<std::ptrdiff_t>(r * from.size()));
    const Noising drawn = objective_.draw(key(from_where.strength));
    SamplerStep step;
    step.sigma = drawn.sigma;
    step.timestep = drawn.timestep;
    time.mutable_as<float>()[r] = model_->denoiser().time(step);
    weight.mutable_as<float>()[r] = drawn.weight * rows[r].example->weight;
    const float factors[] = {drawn.latents, drawn.noise, drawn.target_latents, drawn.target_noise};
    std::copy(std::begin(factors), std::end(factors),
              noising.mutable_as<float>().begin() + static_cast<std::ptrdiff_t>(4 * r));
    put_key(key(from_where.noise), keys.mutable_as<int32_t>().subspan(4 * r, 4));
  }
  inputs["latents"] = latents;
  inputs["time"] = time;
  inputs["loss_weight"] = weight;
  inputs["noising"] = noising;
  inputs["noise_keys"] = keys;
  if (rules_.mode == TrainMode::kLora) {
    Tensor strength = Tensor::empty(DType::kF32, {count, rules_.rank});
    std::ranges::fill(strength.mutable_as<float>(), rules_.alpha / static_cast<float>(rules_.rank));
    inputs[lora_strength_name(0)] = strength;
    if (rules_.dropout > 0 && entry.pass == TrainPass::kGradients)
      inputs[lora_dropout_name(0)] = dropout_keys(rows);
  }
  if (entry.teacher != nullptr) {
    for (const auto& [name, tensor] : inputs) {
      if (name != "loss_weight") entry.teacher->set_input(name, tensor);
    }
    entry.teacher->run();
    inputs["target"] = as_f32(entry.teacher->output("sample"));
  }
  for (const auto& [name, tensor] : inputs) entry.program->set_input(name, tensor);
  run_program(*entry.program);
  return entry.program->output("loss").as<float>()[0];
}

double Trainer::rate() const {
  const double highest = rules_.optimizer.learning_rate;
  const auto at = static_cast<double>(step_ + 1), warmup = static_cast<double>(rules_.warmup);
  if (at <= warmup) return highest * at / warmup;
  if (rules_.rate == RateShape::kConstant) return highest;
  const double left = std::max(1.0, static_cast<double>(rules_.steps) - warmup);
  return highest * 0.5 * (1 + std::cos(std::numbers::pi * (at - 1 - warmup) / left));
}

TrainStep Trainer::step() {
  HT_ASSERT(!done());
  TrainStep made;
  double loss = 0;
  const BatchOrder::Position before = order_.position();
  const Drawn drawn = {rules_.seed, static_cast<uint64_t>(step_), Draw::kStrength, Draw::kNoising};
  try {
    for (int64_t part = 0; part < rules_.accumulate; ++part) {
      const std::vector<Row> rows = rows_of(order_.next(), part);
      TrainPrograms::Entry& entry = program_for(TrainPass::kGradients, rows);
      const bool adds = part > 0, sums = sums_ != nullptr && part + 1 == rules_.accumulate;
      loss += run(entry, rows, drawn,
                  [&](Program& program) { sums ? sums_->run(program, adds) : program.run(); });
      if (!sums) parameters_->take_gradients(*entry.program, adds);
    }
    if (sums_) made.sums = sums_->finish();
    loss = processes_.sum(loss, cancelled_);
  } catch (...) {  // cancelled: the step is still to come
    if (sums_) sums_->abandon();
    order_.seek(before);
    throw;
  }
  const auto parts = static_cast<double>(rules_.accumulate * processes_.size());
  made.loss = loss / parts;
  made.gradient_norm = parameters_->gradient_norm() / parts;
  made.learning_rate = rate();
  if (!std::isfinite(made.loss) || !std::isfinite(made.gradient_norm)) {
    order_.seek(before);
    throw Error(ErrorCode::kInvalidInput, "training",
                "the loss of step {} is {} and its gradient {}{}", step_ + 1, made.loss,
                made.gradient_norm, first_without_number());
  }
  AdamWArgs how = rules_.optimizer;
  how.learning_rate = static_cast<float>(made.learning_rate);
  how.step = step_ + 1;
  how.rounding = draw_key(rules_.seed, Draw::kRounding, static_cast<uint64_t>(step_), 0);
  const bool clips = rules_.clip > 0 && made.gradient_norm > rules_.clip;
  if (rules_.average > 0) {  // less at first, when what it began with counts for little
    const auto at = static_cast<double>(step_ + 1);
    how.average_rate = static_cast<float>(1 - std::min(rules_.average, (1 + at) / (10 + at)));
  }
  how.gradient_scale = static_cast<float>((clips ? rules_.clip / made.gradient_norm : 1.0) / parts);
  parameters_->step(how);
  made.step = ++step_;
  return made;
}

std::string Trainer::first_without_number() const {
  std::vector<std::string> names;
  for (const std::string& weight : sites_.weights) {  // B's gradient needs the forward alone
    names.insert(names.end(), {lora_up_name(weight), lora_down_name(weight)});
  }
  const auto gradients = parameters_->gradients();
  if (rules_.mode != TrainMode::kLora) {
    for (const auto& [name, gradient] : gradients) names.push_back(name);
  }
  for (const std::string& name : names) {
    const auto values = gradients.at(name).as<float>();
    if (!std::ranges::all_of(values, [](float v) { return std::isfinite(v); })) {
      return fmt::format("; the first gradient that is no number is that of '{}'", name);
    }
  }
  return "";
}

Trainer::State Trainer::state() const { return {step_, order_.position(), parameters_->state()}; }

void Trainer::restore(const State& state) {
  parameters_->restore(state.tensors);
  order_.seek(state.position);
  step_ = state.step;
}

std::map<std::string, Tensor> Trainer::weights() const { return parameters_->averages(); }

TrainedLora Trainer::adapters() const {
  TrainedLora lora;
  lora.strength = rules_.alpha / static_cast<float>(rules_.rank);
  lora.folder = std::string(model_->denoiser().folder());
  const auto values = parameters_->averages();
  if (rules_.train_text) lora.encoders = trained_encoders(*model_, values);
  const Weights& own = model_->originals();
  for (const std::string& weight : sites_.weights) {
    if (!own.contains(weight) && rules_.train_text) continue;
    lora.modules[weight] = {values.at(lora_down_name(weight)), values.at(lora_up_name(weight))};
  }
  return lora;
}

}  // namespace halftone
