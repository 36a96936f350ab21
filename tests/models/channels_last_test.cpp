// Networks of convolutions with their channels last: the same bits as with their channels first,
// and as many permutations as they have borders.
#include "halftone/passes/channels_last.h"

#include <gtest/gtest.h>

#include "halftone/models/autoencoder_kl/autoencoder.h"
#include "halftone/models/sd3/family.h"
#include "halftone/models/sdxl/family.h"
#include "halftone/passes/addends.h"
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

}  // namespace
}  // namespace halftone
