#include "halftone/passes/quantize.h"

#include <algorithm>

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/graph/ops.h"
#include "halftone/passes/rewrite.h"

namespace halftone {
namespace {

// Empty if this weight is to be converted, otherwise why not.
std::string why_kept(const QuantizeRecipe& recipe, const std::string& name, const Shape& shape) {
  for (const auto& [pattern, reason] : recipe.keep) {
    if (glob_match(pattern, name)) return reason;
  }
  const auto included = [&](const std::string& pattern) { return glob_match(pattern, name); };
  if (!recipe.include.empty() &&
      std::none_of(recipe.include.begin(), recipe.include.end(), included)) {
    return "not selected by the recipe";
  }
  const int64_t side = std::min(shape[0], shape[1]);
  if (side < recipe.least_size) {
    return fmt::format("a side of {} is less than {}", side, recipe.least_size);
  }
  return {};
}

QuantizeRecipe::Stored choice_for(const QuantizeRecipe& recipe, const std::string& name) {
  for (const auto& [pattern, format, activations] : recipe.rules) {
    if (glob_match(pattern, name)) return {format, activations};
  }
  return {recipe.format};
}

// Empty if the format takes this shape.
std::string why_unsupported(const Format& format, const Shape& shape) {
  if (format.span == ScaleSpan::kBlock && shape[1] % format.block != 0) {
    return fmt::format("{} inputs are no multiple of {}'s block of {}", shape[1], format.name,
                       format.block);
  }
  return {};
}

// Activations take the weights' format, but are never E5M2 (that is for gradients) nor tiled (that
// is for weights that are read along both dimensions), and their scales are not tried out
// (4-over-6): fused quantizers see a value once.
Format activation_format(Format format) {
  if (format.element == ElementType::kE5M2) {
    format.element = ElementType::kE4M3;
    format.name = format.span == ScaleSpan::kBlock ? formats::mxfp8.name
                  : format.span == ScaleSpan::kRow ? formats::fp8.name
                                                   : formats::fp8_tensor.name;
  }
  return plain_format(format);
}

}  // namespace

QuantizedGraph quantize_linears(const Graph& graph, const QuantizeRecipe& recipe) {
  QuantizeReport report;
  std::map<std::string, QuantizeRecipe::Stored> chosen;
  for (const Node& node : graph.nodes()) {
    if (node.op != Op::kLinear) continue;
    const ValueInfo& weight = graph.values()[node.inputs[1]];
    if (weight.source != Source::kWeight || chosen.contains(weight.name)) continue;
    if (const auto stored = recipe.stored.find(weight.name); stored != recipe.stored.end()) {
      chosen.emplace(weight.name, stored->second);
      report.converted.push_back(
          {weight.name, weight.type.shape, stored->second.format, stored->second.activations});
      continue;
    }
    const Shape& shape = weight.type.shape;
    const auto [format, activations] = choice_for(recipe, weight.name);
    if (std::string kept = why_kept(recipe, weight.name, shape); !kept.empty()) {
      report.kept.push_back({weight.name, std::move(kept)});
    } else if (!format.quantized()) {
      const char* why = recipe.stored.empty() ? "the recipe says so" : "stored in high precision";
      report.kept.push_back({weight.name, why});
    } else if (std::string unsupported = why_unsupported(format, shape); !unsupported.empty()) {
      report.kept.push_back({weight.name, std::move(unsupported), true});
    } else {
      chosen[weight.name] = {format, activations};
      report.converted.push_back({weight.name, shape, format, activations});
    }
  }
  if (chosen.empty()) {
    throw Error(ErrorCode::kInvalidInput, std::string(recipe.format.name),
                "no linear of the model can be converted; {}",
                report.kept.empty()
                    ? "it has none"
                    : fmt::format("'{}': {}", report.kept[0].weight, report.kept[0].reason));
  }

  Rewrite how;
  how.weight = [&](const std::string& name, const ValueType& type) {
    const auto found = chosen.find(name);
    const bool stays = found == chosen.end() || recipe.trained.contains(name);
    return stays ? type : ValueType{type.shape, type.dtype, found->second.format};
  };
  how.node = [&](Graph& out, const Node& node, std::span<const Value> inputs) {
    if (node.op != Op::kLinear) return copy_node(out, graph, node, inputs);
    const auto found = chosen.find(graph.values()[node.inputs[1]].name);
    if (found == chosen.end()) return copy_node(out, graph, node, inputs);
    LinearAttributes linear;
    linear.gradients = recipe.gradients;
    linear.round_weight_gradient = recipe.round_weight_gradients;
    if (recipe.activations && found->second.activations) {
      linear.activations = activation_format(found->second.format);
      const auto scale = recipe.input_scales.find(found->first);
      if (scale != recipe.input_scales.end() && linear.activations->scale != ScaleType::kE8M0) {
        linear.activations->static_scale = true;
        linear.static_scale = scale->second;
      }
    }
    Node changed = node;
    changed.attributes = linear;
    std::vector<Value> from(inputs.begin(), inputs.end());
    if (recipe.trained.contains(found->first)) {
      from[1] = quantize_weight(from[1], found->second.format);
    }
    return copy_node(out, graph, changed, from);
  };
  std::shared_ptr<Graph> annotated = rewrite(graph, how);
  return {std::move(annotated), std::move(report)};
}

}  // namespace halftone
