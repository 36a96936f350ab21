// Text encoders that are trained together with the denoiser that reads them: all in one graph, from
// the ids of captions on, so that no states are known beforehand.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "halftone/engine/model.h"
#include "halftone/training/lora_output.h"
#include "halftone/training/train_rules.h"

namespace halftone {

// A Condition of a caption's ids, and of states and vectors that nobody computed. Captions that the
// encoders cannot read are Errors.
Condition caption_ids(const Conditioner& conditioner, const std::string& caption);

// An Error where the model's encoders cannot be trained.
void check_trains_text(const Model& model);

// Linears of encoders that have adapters, by their names in the common graph; "attention" of the
// denoiser's targets means theirs, too. None is an Error.
std::vector<LinearInfo> text_sites(const Model& model, const TrainRules& rules);
Weights text_weights(const Model& model);  // of all encoders, by those names

// A denoiser's graph behind the encoders', for so many rows.
std::shared_ptr<Graph> behind_encoders(const Graph& denoiser, const Model& model, int64_t rows);
// The inputs of the encoders for these rows; what they replace among the denoiser's is removed.
void give_captions(const Model& model, std::span<const Condition* const> rows,
                   NamedTensors& inputs);

// Where adapters of encoders go in files.
std::vector<TrainedLora::Encoder> trained_encoders(const Model& model,
                                                   const std::map<std::string, Tensor>& values);

}  // namespace halftone
