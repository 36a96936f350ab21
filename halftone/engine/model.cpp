#include "halftone/engine/model.h"

#include <algorithm>
#include <array>
#include <set>

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/engine/imagined.h"
#include "halftone/io/model_hash.h"

namespace halftone {
namespace {

Weights finite(Weights weights, const Checkpoint& file, const LoadOptions& options) {
  // Weights are looked at and converted on their way, on the CPU.
  check_finite(weights, file.path().string(), cpu_kernels(), {options.stream.threads});
  return weights;
}

std::map<std::string, int> counted_formats(const QuantizeReport& quantized) {
  std::map<std::string, int> formats;
  for (const auto& linear : quantized.converted) ++formats[std::string(linear.format.name)];
  return formats;
}

std::array<std::shared_ptr<Graph>, 2> codec_graphs(const Codec& codec) {
  return {codec.decoder({1, codec.channels(), 1, 1}, {}),
          codec.encoder({1, 3, codec.scale(), codec.scale()}, {})};
}

std::shared_ptr<const Checkpoint> open(const std::filesystem::path& path) {
  return std::make_shared<const Checkpoint>(Checkpoint::open(path));
}

std::vector<const Checkpoint*> each_once(std::span<const std::shared_ptr<const Checkpoint>> files) {
  std::vector<const Checkpoint*> found;
  for (const auto& file : files) {
    if (std::ranges::find(found, file.get()) == found.end()) found.push_back(file.get());
  }
  return found;
}

// Weights that the file holds in parts.
InputCuts stored_cuts(const Graph& whole, const Checkpoint& file, const WeightNames& names) {
  const auto is_there = [&](const std::string& weight) {
    return file.find(names.stored_as ? names.stored_as(weight).name : weight) != nullptr;
  };
  InputCuts cuts = input_parts(whole);
  std::erase_if(cuts, [&](const auto& cut) {
    return is_there(cut.first) || !is_there(cut_name(cut.first, 0));
  });
  return cuts;
}

// What the recipe selects.
std::vector<LinearInfo> linears_in(const Graph& graph, const QuantizeRecipe& recipe) {
  std::map<std::string, int> group_of;  // by weight
  std::map<int, int> groups;            // by input
  for (const Node& node : graph.nodes()) {
    if (node.op != Op::kLinear) continue;
    const int next = static_cast<int>(groups.size());
    group_of[graph.values()[node.inputs[1]].name] =
        groups.emplace(node.inputs[0], next).first->second;
  }
  std::vector<LinearInfo> found;
  for (const auto& linear : quantize_linears(graph, recipe).report.converted) {
    found.push_back({linear.weight, linear.shape, group_of.at(linear.weight)});
  }
  return found;
}

}  // namespace

std::shared_ptr<const Model> Model::load(const FoundModel& found, const LoadOptions& options) {
  return load(ModelParts::read(found), options);
}

std::shared_ptr<const Model> Model::load(const ModelParts& parts, const LoadOptions& options) {
  const std::shared_ptr<Model> model(new Model());
  model->parts_ = parts;
  model->options_ = options;
  std::map<std::filesystem::path, std::shared_ptr<const Checkpoint>> opened;  // one may hold all
  const auto add = [&](const std::filesystem::path& path) {
    auto& file = opened[path];
    if (file == nullptr) file = open(path);
    model->files_.push_back(file);
  };
  for (const std::string& folder : parts.conditioner->folders()) add(parts.files.weights(folder));
  add(parts.denoiser_path());
  add(parts.files.weights(parts.codec->folder()));

  for (size_t i = 0; i < parts.conditioner->folders().size(); ++i) model->read_encoder(i);
  model->encoders_.resize(model->texts_.size());
  model->choose_text_formats();
  model->read_denoiser();
  model->read_codec();
  if (!options.bare) {
    model->place_text();
    model->place_picture();
  }
  return model;
}

void Model::read_encoder(size_t index) {
  const Checkpoint& file = *files_[index];
  const Conditioner& conditioner = *parts_.conditioner;
  const std::shared_ptr<Graph> graph = conditioner.build(index, 1, {});
  texts_.push_back(
      {finite(load_weights(file, {&graph, 1}, conditioner.names(index, file)), file, options_),
       {}});
}

void Model::choose_text_formats() {
  report_.encoders.clear();
  const std::vector<std::string> folders = parts_.conditioner->folders();
  for (size_t i = 0; i < texts_.size(); ++i) {
    Encoder& text = texts_[i];
    text.recipe.reset();
    report_.encoders.push_back({folders[i], {}, {}});
    const auto stored = quantized_formats(text.originals);
    if (!options_.text_format && stored.empty()) continue;
    // What a quantized file keeps in high precision stays so, as in the denoiser.
    text.recipe = parts_.conditioner->recipe(
        i, stored.empty() ? options_.text_format.value() : formats::bf16);
    text.recipe->stored = stored;
    EncoderReport& report = report_.encoders.back();
    try {
      const std::shared_ptr<Graph> graph = parts_.conditioner->build(i, 1, {});
      report.quantized = quantize_linears(*graph, *text.recipe).report;
    } catch (const Error& error) {
      throw Error(error.code(), "text_precision", "{}: {}", folders[i], error.message());
    }
    report.formats = counted_formats(report.quantized);
  }
}

void Model::read_codec() {
  const Checkpoint& file = *files_.back();
  codec_originals_ = finite(
      load_weights(file, codec_graphs(*parts_.codec), parts_.codec->names(file)), file, options_);
}

std::shared_ptr<const ModelPart> Model::make_part(
    const Weights& originals, const Making& making,
    std::span<const std::shared_ptr<Graph>> graphs) const {
  CompileOptions how;
  how.optimize = options_.compile;
  how.cuts = making.cuts;
  how.recipe = making.recipe;
  DeviceContext* const device = options_.stream.device;
  Weights weights = originals;
  if (imagined_) {
    imagine_conversion(weights, making.quantized);
    const auto memory = device != nullptr ? std::make_unique<ImaginedDevice>(*device) : nullptr;
    return std::make_shared<ModelPart>(std::move(weights), graphs, std::move(how), options_,
                                       memory.get(), making.stream_blocks);
  }
  // Weights are converted on their way, on the CPU.
  quantize_weights(weights, making.quantized, cpu_kernels(), {options_.stream.threads});
  return std::make_shared<ModelPart>(std::move(weights), graphs, std::move(how), options_, device,
                                     making.stream_blocks);
}

void Model::place_text() {
  for (size_t i = 0; i < encoders_.size(); ++i) {
    const std::shared_ptr<Graph> graph = parts_.conditioner->build(i, 1, {});
    encoders_[i] = make_part(texts_[i].originals,
                             {.quantized = report_.encoders[i].quantized,
                              .recipe = texts_[i].recipe,
                              .stream_blocks = options_.stream_encoders ? kAllBlocks : 0},
                             {&graph, 1});
  }
}

void Model::place_picture() {
  const std::shared_ptr<Graph> whole = whole_graph();
  denoiser_weights_ = make_part(
      originals_, {report_.quantized, recipe_, cuts_, options_.stream_blocks}, {&whole, 1});
  report_.streamed = denoiser_weights_->streamed();
  codec_weights_ = make_part(codec_originals_, {}, codec_graphs(*parts_.codec));
}

std::shared_ptr<Graph> Model::whole_graph() const {
  return parts_.denoiser->build(parts_.denoiser->smallest_shape(), {});
}

std::shared_ptr<Graph> Model::smallest_graph() const {
  const std::shared_ptr<Graph> whole = whole_graph();
  return cuts_.empty() ? whole : cut_inputs(*whole, cuts_);
}

InputCuts Model::cuttable() const {
  InputCuts cuts;
  const InputCuts all = input_parts(*whole_graph());
  for (const LinearInfo& linear : whole_linears()) {
    if (const auto found = all.find(linear.weight); found != all.end()) cuts.insert(*found);
  }
  return cuts;
}

// Those that are asked for. What is quantized as a whole stays whole.
void Model::cut_weights(Weights& weights) {
  for (const auto& [name, widths] : cuttable()) {
    const auto matches = [&](const std::string& pattern) { return glob_match(pattern, name); };
    const auto found = weights.find(name);
    if (found == weights.end() || std::ranges::none_of(options_.cut_inputs, matches)) continue;
    const auto* tensor = std::get_if<Tensor>(&found->second);
    if (tensor == nullptr) continue;
    int64_t begin = 0;
    Weights parts;
    for (size_t i = 0; i < widths.size(); begin += widths[i++]) {
      parts.emplace(cut_name(name, i), columns_of(*tensor, begin, begin + widths[i]));
    }
    weights.erase(found);
    weights.merge(parts);
    cuts_.emplace(name, widths);
  }
}

void Model::read_denoiser() {
  const Checkpoint& file = *files_[files_.size() - 2];
  const std::shared_ptr<Graph> whole = whole_graph();
  const WeightNames names = parts_.denoiser->names(file);
  cuts_ = stored_cuts(*whole, file, names);
  const std::shared_ptr<Graph> stored_graph = smallest_graph();
  std::map<std::string, float> input_scales;
  std::set<std::string> full_precision;
  originals_ = finite(load_weights(file, {&stored_graph, 1}, names, &input_scales, &full_precision),
                      file, options_);
  if (!options_.cut_inputs.empty()) cut_weights(originals_);
  const std::shared_ptr<Graph> graph = smallest_graph();

  auto stored = quantized_formats(originals_);
  for (const std::string& name : full_precision) {
    if (stored.contains(name)) stored.at(name).activations = false;
  }
  // What a quantized file keeps in high precision stays so, whatever format is asked for.
  if (options_.format || options_.recipe || !stored.empty()) {
    if (options_.automatic && !stored.empty()) options_.activations = DType::kBF16;
    QuantizeRecipe recipe =
        options_.recipe
            ? *options_.recipe
            : parts_.denoiser->recipe(stored.empty() ? *options_.format : formats::bf16);
    recipe.stored = stored;
    recipe.input_scales.insert(input_scales.begin(), input_scales.end());
    if (!options_.recipe) recipe.activations = options_.quantize_activations;
    report_formats(quantize_linears(*graph, recipe).report);
    report_.stored = !stored.empty();
    report_.calibrated = !recipe.input_scales.empty();
    recipe_ = std::move(recipe);
  }
}

void Model::report_formats(const QuantizeReport& quantized) {
  report_.quantized = quantized;
  report_.formats = counted_formats(quantized);
  report_.stored = report_.calibrated = false;
}

std::string Model::hash() const { return model_hash(each_once(files_)); }

std::string Model::encoders_hash() const {
  return model_hash(each_once(std::span(files_).first(encoders_.size())));
}

std::string Model::codec_hash() const {
  const Checkpoint* file = files_.back().get();
  return model_hash({&file, 1});
}

std::shared_ptr<const Adapter> Model::load_adapter(const std::string& file) const {
  return std::make_shared<Adapter>(LoraAdapter::load(file, parts_.adapted()), parts_,
                                   options_.stream.device);
}

std::vector<LinearInfo> Model::linears() const {
  return linears_in(*smallest_graph(), parts_.denoiser->recipe(formats::fp8));
}

std::vector<LinearInfo> Model::whole_linears() const {
  return linears_in(*whole_graph(), parts_.denoiser->recipe(formats::fp8));
}

}  // namespace halftone
