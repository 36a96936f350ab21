#include "halftone/training/text_training.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/passes/feed.h"

namespace halftone {
namespace {

std::string prefix_of(const std::string& folder) { return folder + "/"; }

std::string ids_name(size_t encoder) { return fmt::format("caption ids {}", encoder); }

PromptTokens tokens_of(const Condition& condition, size_t encoders) {
  PromptTokens tokens;
  for (size_t i = 0; i < encoders; ++i) {
    const auto ids = condition.at(ids_name(i)).as<int32_t>();
    tokens.emplace_back(ids.begin(), ids.end());
  }
  return tokens;
}

}  // namespace

Condition caption_ids(const Conditioner& conditioner, const std::string& caption) {
  const PromptTokens tokens = conditioner.tokenize(caption);
  Condition condition;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto count = static_cast<int64_t>(tokens[i].size());
    Tensor ids = Tensor::empty(DType::kI32, {count});
    std::ranges::copy(tokens[i], ids.mutable_as<int32_t>().begin());
    condition[ids_name(i)] = ids;
  }
  condition["text"] =
      Tensor::zeros(DType::kF32, {conditioner.text_tokens(tokens), conditioner.features()});
  for (const auto& [name, width] : conditioner.vectors()) {
    condition[name] = Tensor::zeros(DType::kF32, {width});
  }
  return condition;
}

void check_trains_text(const Model& model) {
  if (!model.conditioner().trains_together()) {
    throw Error(ErrorCode::kUsage, "train-text", "the text encoders of {} are not trained",
                model.family().title);
  }
  for (const EncoderReport& encoder : model.report().encoders) {
    if (encoder.formats.empty()) continue;
    throw Error(ErrorCode::kUsage, "train-text",
                "takes text encoders in high precision, and {} is in {}", encoder.folder,
                encoder.formats.begin()->first);
  }
}

std::vector<LinearInfo> text_sites(const Model& model, const TrainRules& rules) {
  const Conditioner& conditioner = model.conditioner();
  std::vector<LinearInfo> sites;
  for (size_t i = 0; i < conditioner.folders().size(); ++i) {
    const auto graph = conditioner.build(i, 1, {});
    const QuantizeRecipe layers = conditioner.recipe(i, formats::fp8);
    for (const auto& linear : quantize_linears(*graph, layers).report.converted) {
      const std::string name = prefix_of(conditioner.folders()[i]) + linear.weight;
      const auto matches = [&](const std::string& p) { return glob_match(p, name); };
      if (!rules.targets.empty() && std::ranges::none_of(rules.targets, matches)) continue;
      sites.push_back({name, linear.shape});
    }
  }
  if (sites.empty()) {
    throw Error(ErrorCode::kUsage, "targets", "match no linear of the text encoders' layers");
  }
  return sites;
}

Weights text_weights(const Model& model) {
  Weights all;
  const std::vector<std::string> folders = model.conditioner().folders();
  for (size_t i = 0; i < folders.size(); ++i) {
    for (const auto& [name, weight] : model.encoder_part(i).weights()) {
      all.emplace(prefix_of(folders[i]) + name, weight);
    }
  }
  return all;
}

std::shared_ptr<Graph> behind_encoders(const Graph& denoiser, const Model& model, int64_t rows) {
  const Conditioner& conditioner = model.conditioner();
  std::vector<Feeder> feeders;
  for (size_t i = 0; i < conditioner.folders().size(); ++i) {
    feeders.push_back({conditioner.build_rows(i, rows, {model.text_activations(), false}),
                       prefix_of(conditioner.folders()[i])});
  }
  return feed(denoiser, feeders,
              [&](std::span<const NamedValues> results) { return conditioner.joined(results); });
}

void give_captions(const Model& model, std::span<const Condition* const> rows,
                   NamedTensors& inputs) {
  const Conditioner& conditioner = model.conditioner();
  const std::vector<std::string> folders = conditioner.folders();
  inputs.erase("text");
  for (const auto& [name, width] : conditioner.vectors()) inputs.erase(name);
  std::vector<PromptTokens> prompts;
  for (const Condition* row : rows) prompts.push_back(tokens_of(*row, folders.size()));
  for (size_t i = 0; i < folders.size(); ++i) {
    for (const auto& [name, tensor] : conditioner.inputs_of_rows(i, prompts)) {
      inputs[prefix_of(folders[i]) + name] = tensor;
    }
  }
}

std::vector<TrainedLora::Encoder> trained_encoders(const Model& model,
                                                   const std::map<std::string, Tensor>& values) {
  const Conditioner& conditioner = model.conditioner();
  std::vector<TrainedLora::Encoder> encoders;
  for (size_t i = 0; i < conditioner.folders().size(); ++i) {
    AdaptedModel::Encoder names = conditioner.adapted(i);
    TrainedLora::Encoder encoder{names.folder, names.kohya, {}};
    const std::string prefix = prefix_of(names.folder);
    for (const auto& [path, targets] : names.targets) {
      for (const LoraTarget& target : targets) {
        const auto down = values.find(lora_down_name(prefix + target.weight));
        if (down == values.end()) continue;
        encoder.modules[target.weight] = {down->second,
                                          values.at(lora_up_name(prefix + target.weight))};
      }
    }
    encoders.push_back(std::move(encoder));
  }
  return encoders;
}

}  // namespace halftone
