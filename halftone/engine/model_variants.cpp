// A model with something about it changed: the rest is shared, and nothing is read anew.
#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/engine/model.h"

namespace halftone {

std::shared_ptr<const Model> Model::with_placed(PlacedParts parts) const {
  const std::shared_ptr<Model> model(new Model(*this));
  if (!parts.text) std::ranges::fill(model->encoders_, nullptr);
  if (!parts.picture) model->denoiser_weights_ = model->codec_weights_ = nullptr;
  if (parts.text && !has_encoders()) model->place_text();
  if (parts.picture && !placed().picture) model->place_picture();
  return model;
}

std::shared_ptr<const Model> Model::with_text_format(const std::optional<Format>& format) const {
  const std::shared_ptr<Model> model(new Model(*this));
  std::ranges::fill(model->encoders_, nullptr);
  model->options_.text_format = format;
  model->choose_text_formats();
  return model;
}

std::shared_ptr<const Model> Model::with_streamed_blocks(int count) const {
  const std::shared_ptr<Model> model(new Model(*this));
  model->denoiser_weights_ = model->codec_weights_ = nullptr;
  model->options_.stream_blocks = count;
  return model;
}

std::shared_ptr<const Model> Model::with_streamed_encoders() const {
  const std::shared_ptr<Model> model(new Model(*this));
  std::ranges::fill(model->encoders_, nullptr);
  model->options_.stream_encoders = true;
  return model;
}

std::shared_ptr<const Model> Model::imagined() const {
  const std::shared_ptr<Model> model(new Model(*this));
  model->imagined_ = true;
  model->place_text();
  model->place_picture();
  return model;
}

std::shared_ptr<const Model> Model::with_weights(const Weights& weights) const {
  const std::shared_ptr<Model> model(new Model(*this));
  for (const auto& [name, weight] : weights) model->originals_.at(name) = weight;
  QuantizeReport converted;
  for (const auto& linear : report_.quantized.converted) {
    if (weights.contains(linear.weight)) converted.converted.push_back(linear);
  }
  Weights changed = weights;
  quantize_weights(changed, converted, cpu_kernels(), {options_.stream.threads});
  model->denoiser_weights_ = std::make_shared<ModelPart>(
      denoiser_weights_->with(changed, denoiser_weights_->compile_options().recipe, options_));
  return model;
}

std::shared_ptr<const Model> Model::without_encoders() const {
  const std::shared_ptr<Model> model(new Model(*this));
  for (auto& encoder : model->encoders_) encoder = nullptr;
  return model;
}

QuantizeReport Model::plan_recipe(const QuantizeRecipe& recipe) const {
  return quantize_linears(*smallest_graph(), recipe).report;
}

std::shared_ptr<const Model> Model::with_recipe(const std::optional<QuantizeRecipe>& recipe,
                                                const WeightQuantizer& quantizer) const {
  const std::shared_ptr<Model> model(new Model(*this));
  model->options_.recipe = recipe;
  model->options_.format.reset();
  model->report_formats(recipe ? plan_recipe(*recipe) : QuantizeReport{});
  if (recipe) model->report_.calibrated = !recipe->input_scales.empty();
  std::map<std::string, Format> wanted;
  for (const auto& linear : model->report_.quantized.converted) {
    wanted.emplace(linear.weight, linear.format);
  }
  Weights changed;
  for (const auto& [name, now] : denoiser_weights_->weights()) {
    const auto* quantized = std::get_if<QuantizedTensor>(&now);
    const auto format = wanted.find(name);
    if (format == wanted.end()) {
      if (quantized != nullptr) changed[name] = originals_.at(name);
      continue;
    }
    // Another quantizer may make other codes of the same format.
    if (quantized != nullptr && quantized->format == format->second && !quantizer) continue;
    const Tensor& original = std::get<Tensor>(originals_.at(name));
    if (quantizer) {
      changed[name] = quantizer(name, original, format->second);
    } else {
      changed[name] = original;
    }
  }
  if (!quantizer) {
    QuantizeReport plain;
    for (const auto& linear : model->report_.quantized.converted) {
      if (changed.contains(linear.weight)) plain.converted.push_back(linear);
    }
    quantize_weights(changed, plain, cpu_kernels(), {options_.stream.threads});
  }
  model->denoiser_weights_ =
      std::make_shared<ModelPart>(denoiser_weights_->with(changed, recipe, options_));
  return model;
}

}  // namespace halftone
