// Weights of text encoders from every layout that files have them in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halftone/io/safetensors_writer.h"
#include "halftone/models/clip_text/names.h"
#include "halftone/models/t5/names.h"
#include "tests/support/errors.h"
#include "tests/support/procedural.h"
#include "tests/support/run_graph.h"
#include "tests/support/temp_dir.h"

namespace halftone {
namespace {

using test::error_of;
using test::floats;
using testing::HasSubstr;
using Tensors = std::vector<std::pair<std::string, Tensor>>;

class TextEncoderNames : public testing::Test {
 protected:
  TextEncoderNames() {
    config_.vocab_size = 9;
    config_.hidden_size = 8;
    config_.intermediate_size = 12;
    config_.layers = 3;
    config_.heads = 2;
    config_.positions = 5;
    config_.projection = 6;
    options_.projected = true;
  }
  Checkpoint written(const Tensors& tensors) const {
    write_safetensors(dir_ / "t.safetensors", tensors);
    return Checkpoint::open(dir_ / "t.safetensors");
  }
  std::shared_ptr<Graph> graph() const {
    return clip_text::build_text_encoder(config_, 1, 1, options_);
  }
  Tensors canonical() const {
    Tensors tensors;
    for (const auto& [name, weight] : test::procedural_weights(*graph())) {
      tensors.emplace_back(name, std::get<Tensor>(weight));
    }
    return tensors;
  }
  // Loads what is there, and holds it to what the weights are.
  void expect_loads(const Tensors& tensors, const std::string& within = "") const {
    const Checkpoint file = written(tensors);
    const auto names = clip_text::names_in(file, config_, options_, within);
    const std::shared_ptr<Graph> graphs[] = {graph()};
    const Weights weights = load_weights(file, graphs, names);
    for (const auto& [name, weight] : test::procedural_weights(*graphs[0])) {
      EXPECT_EQ(floats(std::get<Tensor>(weights.at(name))), floats(std::get<Tensor>(weight)))
          << name;
    }
  }
  std::string error(const Tensors& tensors, const std::string& within = "") const {
    return error_of([&] { expect_loads(tensors, within); });
  }

  test::TempDir dir_;
  clip_text::Config config_;
  clip_text::Options options_;
};

Tensors renamed(const Tensors& tensors,
                const std::function<std::string(const std::string&)>& rename) {
  Tensors made;
  for (const auto& [name, tensor] : tensors) made.emplace_back(rename(name), tensor);
  return made;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// As OpenCLIP's modules hold them: q, k and v in one, the projection as a factor on the right.
Tensors open_clip(const Tensors& tensors, const std::string& within) {
  std::map<std::string, Tensor> by_name(tensors.begin(), tensors.end());
  Tensors made;
  for (const auto& [name, tensor] : tensors) {
    std::string to = name;
    if (name == "text_projection.weight") {
      const Tensor rows = test::f32_tensor(tensor.shape(), floats(tensor));
      const int64_t out = tensor.shape()[0], in = tensor.shape()[1];
      Tensor turned = Tensor::empty(DType::kF32, {in, out});
      for (int64_t o = 0; o < out; ++o) {
        for (int64_t i = 0; i < in; ++i) {
          turned.mutable_as<float>()[i * out + o] = rows.as<float>()[o * in + i];
        }
      }
      made.emplace_back(within + "text_projection", turned);
      continue;
    }
    if (name.find("k_proj") != std::string::npos || name.find("v_proj") != std::string::npos) {
      continue;
    }
    Tensor whole = tensor;
    if (name.find("q_proj") != std::string::npos) {
      std::vector<float> all;
      for (const char* part : {"q_proj", "k_proj", "v_proj"}) {
        const auto values = floats(by_name.at(replaced(name, "q_proj", part)));
        all.insert(all.end(), values.begin(), values.end());
      }
      const Shape& s = tensor.shape();
      whole = test::f32_tensor(s.rank() == 2 ? Shape{3 * s[0], s[1]} : Shape{3 * s[0]}, all);
    }
    for (const auto& [from, other] : std::initializer_list<std::pair<const char*, const char*>>{
             {"text_model.", ""},
             {"encoder.layers.", "transformer.resblocks."},
             {"embeddings.token_embedding", "token_embedding"},
             {"embeddings.position_embedding.weight", "positional_embedding"},
             {"final_layer_norm", "ln_final"},
             {"layer_norm1", "ln_1"},
             {"layer_norm2", "ln_2"},
             {"self_attn.q_proj.", "attn.in_proj_"},
             {"self_attn.out_proj", "attn.out_proj"},
             {"mlp.fc1", "mlp.c_fc"},
             {"mlp.fc2", "mlp.c_proj"}}) {
      to = replaced(to, from, other);
    }
    made.emplace_back(within + to, whole);
  }
  made.emplace_back(within + "logit_scale", Tensor::zeros(DType::kF32, {1}));
  return made;
}

TEST_F(TextEncoderNames, ClipLoadsFromEveryLayout) {
  Tensors tensors = canonical();
  const auto positions = std::pair{std::string("text_model.embeddings.position_ids"),
                                   Tensor::zeros(DType::kI32, {1, 5})};
  tensors.push_back(positions);
  expect_loads(tensors);
  const auto bare = [](const std::string& name) { return replaced(name, "text_model.", ""); };
  expect_loads(renamed(tensors, bare));
  const std::string within = "text_encoders.clip_l.transformer.";
  Tensors inside = renamed(tensors, [&](const std::string& name) { return within + name; });
  inside.emplace_back("text_encoders.clip_l.logit_scale", Tensor::zeros(DType::kF32, {1}));
  inside.emplace_back("vae.x", Tensor::zeros(DType::kF32, {1}));
  expect_loads(inside, within);
  expect_loads(open_clip(canonical(), ""));
  expect_loads(open_clip(canonical(), "conditioner.embedders.1.model."),
               "conditioner.embedders.1.model.");
}

// Numbers without a scale in 8 bits are what they say, transposed or not.
TEST_F(TextEncoderNames, ClipLoadsAProjectionInEightBits) {
  Tensors tensors = open_clip(canonical(), "");
  for (auto& [name, tensor] : tensors) {
    if (name != "text_projection") continue;
    Tensor codes = Tensor::empty(DType::kF8E4M3, tensor.shape());
    for (int64_t i = 0; i < codes.numel(); ++i) {
      codes.mutable_as<uint8_t>()[i] = static_cast<uint8_t>(0x38 + i % 7);  // 1, 1.125, ...
    }
    tensor = codes;
  }
  const Checkpoint file = written(tensors);
  const std::shared_ptr<Graph> graphs[] = {graph()};
  const Weights weights = load_weights(file, graphs, clip_text::names_in(file, config_, options_));
  const auto values = floats(std::get<Tensor>(weights.at("text_projection.weight")));
  for (int64_t o = 0; o < config_.projection; ++o) {
    for (int64_t i = 0; i < config_.hidden_size; ++i) {
      const auto at = static_cast<float>((i * config_.projection + o) % 7);
      EXPECT_EQ(values[o * config_.hidden_size + i], 1 + at / 8);
    }
  }
}

TEST_F(TextEncoderNames, ClipMissesNothingAndKnowsWhatIsNotUsed) {
  Tensors tensors = canonical();
  tensors.pop_back();  // the last norm of a layer
  EXPECT_THAT(error(tensors), HasSubstr("1 missing: '"));
  tensors = canonical();
  tensors.emplace_back("text_model.encoder.layers.3.mlp.fc1.bias",
                       Tensor::zeros(DType::kF32, {12}));
  EXPECT_THAT(error(tensors), HasSubstr("1 unexpected: 'text_model.encoder.layers.3.mlp"));

  // Without the vector neither the last layer, nor what follows it.
  const Tensors all = canonical();
  const Tensors open = open_clip(all, "");
  options_.pooled = options_.projected = false;
  options_.states_after = 2;
  expect_loads(all);
  expect_loads(open);
  options_.states_after = 3;
  expect_loads(all);
  Tensors more = all;
  more.emplace_back("text_model.embeddings.more", Tensor::zeros(DType::kF32, {12}));
  EXPECT_THAT(error(more), HasSubstr("1 unexpected"));
}

TEST(T5Names, TablesUnderEitherNameAndPartsThatWriteText) {
  t5::Config config;
  config.vocab_size = 7;
  config.hidden_size = config.intermediate_size = 8;
  config.layers = 2;
  config.heads = 2;
  config.head_dim = 3;
  const test::TempDir dir;
  const auto graph = t5::build_text_encoder(config, 1, 1, {});
  const Weights wanted = test::procedural_weights(*graph);
  const auto load = [&](const std::function<std::string(const std::string&)>& rename,
                        const Tensors& more, const std::string& within) {
    Tensors tensors = more;
    for (const auto& [name, weight] : wanted) {
      tensors.emplace_back(rename(name), std::get<Tensor>(weight));
    }
    write_safetensors(dir / "t.safetensors", tensors);
    const Checkpoint file = Checkpoint::open(dir / "t.safetensors");
    const Weights weights = load_weights(file, {&graph, 1}, t5::names_in(file, within));
    EXPECT_EQ(weights.size(), wanted.size());
    EXPECT_EQ(floats(std::get<Tensor>(weights.at("shared.weight"))),
              floats(std::get<Tensor>(wanted.at("shared.weight"))));
  };
  const auto same = [](const std::string& name) { return name; };
  const Tensor table = std::get<Tensor>(wanted.at("shared.weight"));
  load(same, {}, "");
  load(same, {{"encoder.embed_tokens.weight", table}, {"lm_head.weight", table}}, "");
  load(same, {{"decoder.block.0.layer.0.SelfAttention.q.weight", table}}, "");
  load(
      [](const std::string& name) {
        return name == "shared.weight" ? "encoder.embed_tokens.weight" : name;
      },
      {}, "");
  const std::string within = "text_encoders.t5xxl.transformer.";
  load([&](const std::string& name) { return within + name; }, {{"vae.x", table}}, within);
  EXPECT_THAT(error_of([&] { load(same, {{"encoder.block.2.x", table}}, ""); }),
              HasSubstr("1 unexpected: 'encoder.block.2.x'"));
}

}  // namespace
}  // namespace halftone
