#include "halftone/cli/bench_measured.h"

#include <fmt/format.h>

#include <cmath>

#include "halftone/base/error.h"
#include "halftone/models/families.h"
#include "halftone/models/zimage/names.h"
#include "halftone/models/zimage/transformer.h"

namespace halftone::cli {
namespace {

// Of products, convolutions and attention; nothing else counts.
double flops_of(const Graph& graph) {
  double flops = 0;
  for (const Node& node : graph.nodes()) {
    const auto shape = [&](size_t i) -> const Shape& {
      return graph.values()[node.inputs[i]].type.shape;
    };
    if (node.op == Op::kLinear) {
      flops += 2.0 * static_cast<double>(shape(0).numel()) * static_cast<double>(shape(1)[0]);
    } else if (node.op == Op::kConv2d) {
      const int64_t pixels = graph.values()[node.outputs[0]].type.shape.numel() / shape(1)[0];
      flops += 2.0 * static_cast<double>(pixels) * static_cast<double>(shape(1).numel());
    } else if (node.op == Op::kAttention) {
      flops += 4.0 * static_cast<double>(shape(0).numel()) * static_cast<double>(shape(1)[1]);
    }
  }
  return flops;
}

Measured zimage_blocks(const BenchOptions& options, int64_t layers) {
  const zimage::TransformerConfig config = bench_config(options);
  const int64_t tokens = options.tokens > 0 ? options.tokens : 4224;
  Measured m;
  m.title = fmt::format("{} Z-Image block{}: batch {}, {} tokens, dim {}, {} heads, ffn {}", layers,
                        layers == 1 ? "" : "s", options.batch, tokens, config.dim, config.heads,
                        config.hidden());
  m.layers = layers;
  m.tokens = tokens;
  m.build = [=, batch = options.batch](DType activations) {
    return zimage::build_blocks(config, layers, batch, tokens, activations);
  };
  m.recipe = zimage::default_recipe;
  m.flops = flops_of(*m.build(DType::kBF16));
  return m;
}

// A square picture of so many tokens, besides those of the text.
Measured whole_denoiser(const BenchOptions& options, const Family& family,
                        const Family::Size& size) {
  const std::shared_ptr<const Denoiser> denoiser = size.denoiser();
  const int64_t tokens = options.tokens > 0 ? options.tokens : size.image_tokens;
  const auto side = static_cast<int64_t>(std::sqrt(static_cast<double>(tokens)));
  if (side * side != tokens) {
    throw Error(ErrorCode::kUsage, "--tokens", "{} are no square picture", tokens);
  }
  const std::vector<int64_t> texts(static_cast<size_t>(options.batch), size.text_tokens);
  const int64_t latents = side * denoiser->patch();
  const DenoiserShape shape = denoiser->shape({denoiser->channels(), latents, latents}, texts);
  Measured m;
  m.title = fmt::format("{} {}: batch {}, {} + {} tokens", family.title, size.name, options.batch,
                        tokens, size.text_tokens);
  m.tokens = tokens + size.text_tokens;
  m.build = [=](DType activations) { return denoiser->build(shape, {activations, false}); };
  m.recipe = [=](const Format& format) { return denoiser->recipe(format); };
  const auto graph = m.build(DType::kBF16);
  m.layers = static_cast<int64_t>(graph->regions().size());
  m.flops = flops_of(*graph);
  return m;
}

}  // namespace

std::string measured_families() {
  std::string known;
  for (const Family& family : families()) {
    for (const Family::Size& size : family.sizes) {
      known += fmt::format("{}{}:{}", known.empty() ? "" : ", ", family.name, size.name);
    }
  }
  return known;
}

Measured find_measured(const BenchOptions& options, int64_t layers) {
  if (options.family.empty()) return zimage_blocks(options, layers);
  for (const Family& family : families()) {
    for (const Family::Size& size : family.sizes) {
      const std::string name = fmt::format("{}:{}", family.name, size.name);
      if (options.family == name || options.family == family.name) {
        return whole_denoiser(options, family, size);
      }
    }
  }
  throw Error(ErrorCode::kUsage, "--family", "'{}' is none of {}", printable(options.family),
              measured_families());
}

}  // namespace halftone::cli
