// Networks of convolutions with their channels last: the same bits as with their channels first,
// and as many permutations as they have borders.
#include "halftone/passes/channels_last.h"

#include <gtest/gtest.h>

#include "halftone/graph/catalogue.h"
#include "halftone/models/autoencoder_kl/autoencoder.h"
#include "halftone/models/sd3/family.h"
#include "halftone/models/sdxl/family.h"
#include "halftone/passes/addends.h"
#include "halftone/passes/autodiff.h"
#include "halftone/passes/rewrite.h"
#include "tests/support/count_ops.h"
#include "tests/support/denoiser_case.h"

namespace halftone {
namespace {

using test::count_ops;
using test::floats;

// Before and after the pass, and after those that follow it.
void expect_same(const std::shared_ptr<Graph>& graph, const std::map<std::string, Tensor>& inputs,
                 int borders, const std::string& what) {
  const Weights weights = test::procedural_weights(*graph);
  const auto turned = channels_last(*graph);
  EXPECT_EQ(count_ops(*turned, Op::kPermute), borders) << what;
  const auto folded = fold_addends(*fold_silu(*turned));
  Program before(graph, weights, cpu_scalar_kernels(), {2});
  Program after(turned, weights, cpu_scalar_kernels(), {2});
  Program last(folded, weights, cpu_scalar_kernels(), {2});
  const auto expected = before.run(inputs), same = after.run(inputs), near = last.run(inputs);
  for (const auto& [name, tensor] : expected) {
    EXPECT_EQ(test::bytes_of(same.at(name)), test::bytes_of(tensor)) << what << ", " << name;
    EXPECT_LE(test::relative_error(floats(near.at(name)), floats(tensor)), 1e-5)
        << what << ", " << name;
  }
}

TEST(ChannelsLastOfModels, Autoencoders) {
  autoencoder_kl::Config sdxl;
  sdxl.latent_channels = 4;
  sdxl.channels = {8, 16};
  sdxl.layers_per_block = 1;
  sdxl.groups = 4;
  sdxl.quant_conv = sdxl.post_quant_conv = true;
  autoencoder_kl::Config flux2 = sdxl;
  flux2.latent_channels = 3;
  flux2.decoder_channels = {12, 20};
  flux2.patch_size = 2;
  flux2.latents_mean.assign(12, 0.25f);
  flux2.latents_std.assign(12, 2.0f);
  for (const auto* config : {&sdxl, &flux2}) {
    const std::string what = config == &sdxl ? "sdxl" : "flux2";
    const int patches = config->patch_size > 1 ? 1 : 0;  // permutations of their own
    const int64_t channels = config->sampler_channels();
    expect_same(autoencoder_kl::build_decoder(*config, 2, 4, 6, {}),
                {{"latents", test::random_tensor({2, channels, 4, 6}, 1)}}, 2 + patches,
                what + " decoder");
    expect_same(autoencoder_kl::build_encoder(*config, 2, 8, 12, {}),
                {{"image", test::random_tensor({2, 3, 8, 12}, 2)}}, 4 + patches, what + " encoder");
  }
}

class ChannelsLastOfUnets : public testing::TestWithParam<test::Golden>,
                            protected test::DenoiserCase {
 protected:
  ChannelsLastOfUnets() : DenoiserCase(GetParam()) {}
};
INSTANTIATE_TEST_SUITE_P(, ChannelsLastOfUnets,
                         testing::Values(test::Golden{"sdxl", sdxl::family, "small"},
                                         test::Golden{"sdxl", sdxl::family, "levels"}),
                         testing::PrintToStringParamName());

// Latents in and the prediction out; tokens cost nothing.
TEST_P(ChannelsLastOfUnets, AreTheSame) {
  expect_same(denoiser_->build(shape(), {DType::kF32, false}), inputs(), 2, name_);
}

// Of a loss with respect to what lies before, behind and within convolutions.
TEST_P(ChannelsLastOfUnets, GradientsAreTheSame) {
  const auto plain = denoiser_->build(shape(), {DType::kF32, false});
  const auto with_gradients = [&](const std::shared_ptr<Graph>& graph) {
    const Value sample = graph->outputs().at("sample");
    const Value r = graph->constant("r", test::random_tensor(sample.shape(), 5));
    std::vector<Value> wrt;
    std::vector<std::string> names;
    for (const char* part : {"conv_in.weight", "time_emb_proj.weight", "conv2.bias", "to_q.weight",
                             "downsamplers.0.conv.weight", "norm1.weight"}) {
      for (const auto& [name, value] : graph->weights()) {
        if (!name.ends_with(part)) continue;
        names.push_back(name);
        wrt.push_back(value);
        break;
      }
    }
    const auto gradients = differentiate(sum_to(sample * r, {1}), wrt);
    for (size_t i = 0; i < wrt.size(); ++i) graph->output("d " + names[i], gradients[i]);
    return graph;
  };
  const Weights weights = test::procedural_weights(*plain);
  const auto turned = with_gradients(channels_last(*plain));
  const auto folded = fold_addends(*fold_silu(*turned));
  Program before(with_gradients(rewrite(*plain, {})), weights, cpu_scalar_kernels(), {2});
  Program after(folded, weights, cpu_scalar_kernels(), {2});
  const auto expected = before.run(inputs()), found = after.run(inputs());
  EXPECT_GT(expected.size(), 4u);
  for (const auto& [name, tensor] : expected) {
    // Where a group is one channel, its norm takes away what the time has added: zero but for
    // rounding.
    if (test::relative_error(floats(tensor), std::vector<float>(floats(tensor).size(), 0)) < 1e-5) {
      continue;
    }
    EXPECT_LE(test::relative_error(floats(found.at(name)), floats(tensor)), 2e-5) << name;
  }
}

// Of SDXL as it is published: every residual and every time is added by a convolution, and norms
// before convolutions apply their SiLU.
TEST(ChannelsLastOfModels, NothingIsLeftBetweenConvolutions) {
  const Family family = sdxl::family();
  const auto denoiser = family.sizes.at(0).denoiser();
  const std::vector<int64_t> texts = {77, 77};
  const auto graph = denoiser->build(denoiser->shape({4, 128, 128}, texts), {DType::kBF16, false});
  const auto folded = fold_addends(*fold_silu(*channels_last(*graph)));
  int shifts = 0, adds = 0, norms_with_silu = 0;
  for (const Node& node : folded->nodes()) {
    if (node.op == Op::kConv2d) {
      const auto& how = std::get<ConvAttributes>(node.attributes);
      EXPECT_TRUE(how.channels_last);
      shifts += how.shifts;
      adds += how.adds;
    } else if (node.op == Op::kGroupNorm) {
      norms_with_silu += std::get<NormAttributes>(node.attributes).silu;
    } else if (folded->values()[node.outputs[0]].type.shape.rank() == 4) {
      EXPECT_TRUE(node.op == Op::kConcat || node.op == Op::kUpsample2x || node.op == Op::kReshape ||
                  node.op == Op::kPermute || node.op == Op::kCast || node.op == Op::kAttention)
          << op_info(node.op).name;
    }
  }
  EXPECT_EQ(shifts, 17);  // ResNets
  EXPECT_EQ(adds, 17);
  EXPECT_EQ(norms_with_silu, 2 * 17 + 1);
  EXPECT_EQ(count_ops(*folded, Op::kPermute), 2);  // of the latents
}

// Patches by a convolution, whose tokens need no permutation.
class ChannelsLastOfPatches : public testing::Test, protected test::DenoiserCase {
 protected:
  ChannelsLastOfPatches() : DenoiserCase({"sd3", sd3::family, "small"}) {}
};
TEST_F(ChannelsLastOfPatches, AreTheSame) {
  const auto graph = denoiser_->build(shape(), {DType::kF32, false});
  expect_same(graph, inputs(), count_ops(*graph, Op::kPermute), name_);
}

}  // namespace
}  // namespace halftone
