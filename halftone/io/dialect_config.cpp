// The configs that readers of ModelOpt's and compressed-tensors' files look for beside them.
#include <map>
#include <nlohmann/json.hpp>

#include "halftone/io/dialect_writer.h"

namespace halftone {
namespace {

using nlohmann::ordered_json;

std::string module_of(const std::string& weight) {
  constexpr std::string_view kEnd = ".weight";
  return weight.ends_with(kEnd) ? weight.substr(0, weight.size() - kEnd.size()) : weight;
}

// Layers that are quantized alike: the same format, and inputs treated the same way.
struct Group {
  Format format;
  bool static_input = false, full_precision = false;
  std::vector<std::string> layers;
};

std::vector<Group> groups_of(std::span<const WeightInfo> weights) {
  std::map<std::tuple<std::string, bool, bool>, Group> groups;
  for (const WeightInfo& w : weights) {
    const bool is_static = w.input_scale.has_value();
    Group& group = groups[{std::string(plain_format(w.format).name), is_static, w.full_precision}];
    group.format = w.format;
    group.static_input = is_static;
    group.full_precision = w.full_precision;
    group.layers.push_back(module_of(w.name));
  }
  std::vector<Group> out;
  for (auto& [key, group] : groups) out.push_back(std::move(group));
  return out;
}

const char* compressed_format(const Group& group) {
  if (group.format.element == ElementType::kE2M1) return "nvfp4-pack-quantized";
  if (group.format.span == ScaleSpan::kBlock) return "mxfp8-quantized";
  return group.full_precision ? "naive-quantized" : "float-quantized";
}

ordered_json compressed_args(const Group& group, bool input) {
  const Format& f = group.format;
  const bool fp4 = f.element == ElementType::kE2M1, mx = !fp4 && f.span == ScaleSpan::kBlock;
  ordered_json args = {{"num_bits", fp4 ? 4 : 8}, {"type", "float"}, {"symmetric", true}};
  if (fp4 || mx) {
    args["strategy"] = fp4 ? "tensor_group" : "group";
    args["group_size"] = f.block;
    args["scale_dtype"] = fp4 ? "torch.float8_e4m3fn" : "torch.uint8";
  } else if (input) {
    args["strategy"] = group.static_input || f.span == ScaleSpan::kTensor ? "tensor" : "token";
  } else {
    args["strategy"] = f.span == ScaleSpan::kRow ? "channel" : "tensor";
  }
  // A static global scale still has block scales that follow the values at hand.
  if (!input) {
    args["dynamic"] = false;
  } else if (fp4 && group.static_input) {
    args["dynamic"] = "local";
  } else {
    args["dynamic"] = !group.static_input;
  }
  return args;
}

ordered_json compressed_config(const std::vector<Group>& groups,
                               std::span<const std::string> kept_layers) {
  ordered_json config = {{"quant_method", "compressed-tensors"},
                         {"quantization_status", "compressed"}};
  config["format"] = groups.size() == 1 ? compressed_format(groups[0]) : "mixed-precision";
  config["config_groups"] = ordered_json::object();
  for (const Group& group : groups) {
    const std::string name = "group_" + std::to_string(config["config_groups"].size());
    config["config_groups"][name] = {
        {"targets", group.layers},
        {"weights", compressed_args(group, false)},
        {"input_activations", group.full_precision ? ordered_json() : compressed_args(group, true)},
        {"format", compressed_format(group)}};
  }
  config["ignore"] = kept_layers;
  return config;
}

const char* modelopt_algorithm(const Format& f) {
  if (f.element == ElementType::kE2M1) return "NVFP4";
  if (f.span == ScaleSpan::kBlock) return "MXFP8";
  return f.span == ScaleSpan::kRow ? "FP8_PER_CHANNEL_PER_TOKEN" : "FP8";
}

ordered_json modelopt_config(const std::vector<Group>& groups,
                             std::span<const std::string> kept_layers) {
  ordered_json how;
  const auto describe = [](const Group& group, ordered_json& out) {
    out["quant_algo"] = modelopt_algorithm(group.format);
    if (group.format.span == ScaleSpan::kBlock) out["group_size"] = group.format.block;
  };
  if (groups.size() == 1) {
    describe(groups[0], how);
  } else {
    how["quant_algo"] = "MIXED_PRECISION";
    how["quantized_layers"] = ordered_json::object();
    for (const Group& group : groups) {
      for (const std::string& layer : group.layers) describe(group, how["quantized_layers"][layer]);
    }
  }
  how["exclude_modules"] = kept_layers;
  return {{"producer", {{"name", "halftone"}}}, {"quantization", std::move(how)}};
}

}  // namespace

std::optional<DialectConfig> dialect_config(Dialect dialect, std::span<const WeightInfo> weights,
                                            std::span<const std::string> kept_layers) {
  const std::vector<Group> groups = groups_of(weights);
  if (dialect == Dialect::kCompressedTensors) {
    return DialectConfig{"quantization_config", compressed_config(groups, kept_layers).dump(2)};
  }
  if (dialect == Dialect::kModelOpt) {
    return DialectConfig{"hf_quant_config", modelopt_config(groups, kept_layers).dump(2)};
  }
  return {};
}

}  // namespace halftone
