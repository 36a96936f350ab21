#include "halftone/training/train_programs.h"

#include <algorithm>
#include <set>

#include "halftone/training/objective.h"
#include "halftone/training/text_training.h"
#include "halftone/training/train_graph.h"

namespace halftone {
namespace {

// Whether the target is a teacher's.
bool is_taught(const TrainRules& rules, TrainPass pass) {
  return rules.teacher && pass != TrainPass::kCompared && pass != TrainPass::kReference;
}

}  // namespace

TrainPrograms::TrainPrograms(std::shared_ptr<const Model> model, const TrainRules& rules,
                             LoraSites sites, const Parameters& parameters,
                             std::function<bool()> cancelled)
    : model_(std::move(model)),
      cancelled_(std::move(cancelled)),
      rules_(rules),
      sites_(std::move(sites)),
      parameters_(parameters) {
  if (rules_.teacher || rules_.check_gradients) wide_ = model_->with_recipe(std::nullopt);
}

TrainPrograms::Entry& TrainPrograms::get(TrainPass pass, const Shape& latents,
                                         std::span<const int64_t> texts) {
  constexpr size_t kMostPrograms = 16;
  const Denoiser& denoiser = model_->denoiser();
  const DenoiserShape shape = denoiser.shape(latents, texts);
  for (auto it = programs_.begin(); it != programs_.end(); ++it) {
    if (it->pass != pass || it->shape.str() != shape.str()) continue;
    programs_.splice(programs_.begin(), programs_, it);
    return programs_.front();
  }
  if (programs_.size() == kMostPrograms) programs_.pop_back();
  std::shared_ptr<Graph> plain = denoiser.build(shape, {model_->options().activations, false});
  if (rules_.train_text) plain = behind_encoders(*plain, *model_, shape.rows);
  Entry made{pass, shape, student(pass, *plain), nullptr};
  if (is_taught(rules_, pass)) {
    const ModelPart& part = wide_->denoiser_part();
    const LoadOptions& load = wide_->options();
    const auto noisy = add_noising(*plain, false);
    made.teacher = program_of(
        compile(*noisy, part.compile_options(), *load.kernels, load.stream).graph, part.weights());
  }
  programs_.push_front(std::move(made));
  return programs_.front();
}

std::unique_ptr<Program> TrainPrograms::student(TrainPass pass, const Graph& plain) {
  const bool reference = pass == TrainPass::kReference;
  const ModelPart& part = (reference ? *wide_ : *model_).denoiser_part();
  std::vector<std::string> trained;
  for (const auto& [name, weight] : parameters_.weights()) trained.push_back(name);
  CompileOptions how = part.compile_options();
  if (rules_.mode == TrainMode::kLora) {
    LoraSites sites = sites_;
    if (pass != TrainPass::kGradients) sites.dropout = 0;
    how.lora = {sites};
  } else {  // each weight lies on its own
    how.can_stack = [](const std::string&, const std::string&) { return false; };
    if (how.recipe) how.recipe->trained.insert(trained.begin(), trained.end());
  }
  how.recompute = rules_.recompute;
  if (rules_.fp8_gradients && how.recipe) {
    how.recipe->gradients = formats::fp8_e5m2;
    how.recipe->round_weight_gradients = rules_.fp8_weight_gradients;
  }
  how.extend = [&](Graph& graph) {
    std::vector<std::string> wanted;
    if (pass != TrainPass::kHeldOut) {  // some weights are for shapes that this is not
      std::ranges::copy_if(trained, std::back_inserter(wanted),
                           [&](const auto& name) { return graph.weights().contains(name); });
    }
    add_loss(graph, wanted);
  };
  const auto noisy = add_noising(plain, !is_taught(rules_, pass));
  const LoadOptions& load = model_->options();
  const auto graph = compile(*noisy, how, *load.kernels, load.stream).graph;
  Weights weights = part.weights();
  if (rules_.train_text) weights.merge(text_weights(*model_));
  for (const auto& [name, weight] : parameters_.weights()) weights[name] = weight;
  return program_of(graph, weights);
}

std::unique_ptr<Program> TrainPrograms::program_of(const std::shared_ptr<Graph>& graph,
                                                   const Weights& weights) {
  const LoadOptions& load = model_->options();
  const ProgramOptions options{load.kernels, load.stream, load.compile, cancelled_};
  auto program = std::make_unique<Program>(graph, weights, options, arena_);
  for (const std::string& note : program->notes()) {
    if (std::find(notes_.begin(), notes_.end(), note) == notes_.end()) notes_.push_back(note);
  }
  return program;
}

void TrainPrograms::add_weights(ModelMemory& memory) const {
  std::set<const std::byte*> counted;  // models share what is not quantized
  const auto add = [&](const Weights& weights) {
    for (const auto& [name, weight] : weights) {
      const auto* quantized = std::get_if<QuantizedTensor>(&weight);
      const Tensor& stored = quantized != nullptr ? quantized->codes : std::get<Tensor>(weight);
      if (!counted.insert(stored.address()).second) continue;
      if (host_block_of(weight) != nullptr) {
        memory.streamed_weights += byte_size_of(weight);
        continue;
      }
      (stored.mapped() ? memory.file_weights : memory.owned_weights) += byte_size_of(weight);
    }
  };
  for (const Model* model : {model_.get(), wide_.get()}) {
    if (model != nullptr) add(model->denoiser_part().weights());
  }
  if (rules_.train_text) add(text_weights(*model_));
}

}  // namespace halftone
