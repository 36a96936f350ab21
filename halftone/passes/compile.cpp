#include "halftone/passes/compile.h"

#include <algorithm>

#include "halftone/passes/addends.h"
#include "halftone/passes/channels_last.h"
#include "halftone/passes/fuse.h"
#include "halftone/passes/gelu.h"
#include "halftone/passes/lower.h"
#include "halftone/passes/rewrite.h"
#include "halftone/passes/statistics.h"
#include "halftone/passes/swizzle.h"

namespace halftone {

CompiledGraph compile(const Graph& graph, const CompileOptions& options, const Kernels& kernels,
                      const Stream& stream) {
  CompiledGraph result;
  const Graph* from = &graph;
  const auto then = [&](std::shared_ptr<Graph> next) {
    result.graph = std::move(next);  // what it was made from ends here
    from = result.graph.get();
  };
  if (!options.lora.empty()) then(attach_lora(*from, options.lora));
  // Behind adapters, which are beside whole linears.
  if (!options.cuts.empty()) then(cut_inputs(*from, options.cuts));
  if (options.recipe) {
    QuantizedGraph quantized = quantize_linears(*from, *options.recipe);
    result.report = std::move(quantized.report);
    then(std::move(quantized.graph));
  }
  const bool turns_pictures = options.optimize && kernels.channels_last;
  // Gradients follow what they are of; elsewhere borders of parts stay as they are.
  if (turns_pictures && options.extend) then(channels_last(*from));
  if (options.extend) {
    if (from == &graph) then(rewrite(graph, {}));
    options.extend(*result.graph);
  }
  if (options.cut) then(cut(*from, *options.cut));
  then(lower(*from));
  if (!options.optimize) return result;
  if (turns_pictures && !options.extend) then(channels_last(*from));
  const auto is_gradient = [](const Region& region) { return region.gradient; };
  if (std::any_of(from->regions().begin(), from->regions().end(), is_gradient)) {
    if (kernels.attention_statistics) then(hand_over_statistics(*from));
    // Before it is decided what to keep: a sum that a product makes is kept in place of its parts.
    if (kernels.products_add) then(fold_addends(*from));
    then(recompute(*from, options.recompute));
  }
  if (kernels.wide_products) then(merge_linears(*from, options.can_stack));
  if (kernels.products_apply_gelu) then(fold_gelu(*from));
  if (kernels.products_add) then(fold_addends(*from));
  if (kernels.channels_last) then(fold_silu(*from));
  if (stream.device != nullptr && stream.device->multiplies_blocks()) {
    then(swizzle_block_scales(*from));
  }
  then(fuse(*from, kernels.fused_limits));
  return result;
}

}  // namespace halftone
