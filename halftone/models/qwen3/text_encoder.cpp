#include "halftone/models/qwen3/text_encoder.h"

#include <cmath>

#include "halftone/io/config_reader.h"
#include "halftone/nn/layers.h"

namespace halftone::qwen3 {
namespace {

using nn::Bias;
using nn::RopeTables;
using nn::Scope;

Value attention(const Config& c, const Scope& s, Value x, const RopeTables& rope) {
  const int64_t batch = x.dim(0), tokens = x.dim(1);
  const auto project = [&](const char* name, int64_t heads) {
    return reshape(nn::linear(s[name], x, heads * c.head_dim, Bias::kNo),
                   {batch, tokens, heads, c.head_dim});
  };
  const auto rotate = [&](Value v) {
    return halftone::rope(v, rope.cosine, rope.sine, {RopeLayout::kHalves, false});
  };
  const Value q = rotate(nn::rms_norm(s["q_norm"], project("q_proj", c.heads), c.norm_eps));
  const Value k = rotate(nn::rms_norm(s["k_norm"], project("k_proj", c.kv_heads), c.norm_eps));
  const float scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  const Value y =
      halftone::attention(q, k, project("v_proj", c.kv_heads), std::nullopt, {scale, true});
  return nn::linear(s["o_proj"], reshape(y, {batch, tokens, c.heads * c.head_dim}), c.hidden_size,
                    Bias::kNo);
}

Value mlp(const Config& c, const Scope& s, Value x) {
  const Value gate = nn::linear(s["gate_proj"], x, c.intermediate_size, Bias::kNo);
  const Value up = nn::linear(s["up_proj"], x, c.intermediate_size, Bias::kNo);
  return nn::linear(s["down_proj"], silu_mul(gate, up), c.hidden_size, Bias::kNo);
}

}  // namespace

Config parse_config(const nlohmann::json& json, const std::string& where) {
  const ConfigReader read(json, where);
  Config c;
  constexpr int64_t kMost = 1 << 24;
  c.vocab_size = read.integer("vocab_size", c.vocab_size, 1, kMost);
  c.hidden_size = read.integer("hidden_size", c.hidden_size, 1, kMost);
  c.intermediate_size = read.integer("intermediate_size", c.intermediate_size, 1, kMost);
  c.layers = read.integer("num_hidden_layers", c.layers, 1, 10000);
  c.heads = read.integer("num_attention_heads", c.heads, 1, kMost);
  c.kv_heads = read.integer("num_key_value_heads", c.kv_heads, 1, kMost);
  c.head_dim = read.integer("head_dim", c.hidden_size / c.heads, 2, kMost);
  c.norm_eps = static_cast<float>(read.positive("rms_norm_eps", c.norm_eps));
  c.rope_theta = read.positive("rope_theta", c.rope_theta);
  if (read.has("rope_parameters")) {  // where newer files keep it
    const ConfigReader rope(json["rope_parameters"], where);
    c.rope_theta = rope.positive("rope_theta", c.rope_theta);
    rope.must_be("rope_type", "default");
  }
  read.must_be("hidden_act", "silu");
  read.must_be("attention_bias", false);
  read.must_be("use_sliding_window", false);
  if (c.heads % c.kv_heads != 0) read.fail("num_key_value_heads", "does not divide the heads");
  if (c.head_dim % 2 != 0) read.fail("head_dim", "is odd");
  return c;
}

std::shared_ptr<Graph> build_text_encoder(const Config& c, int64_t batch, int64_t tokens,
                                          const Options& options) {
  auto graph = std::make_shared<Graph>();
  const Scope root = Scope(*graph, "")["model"];
  const Value ids = graph->input("ids", {{batch, tokens}, DType::kI32, {}});
  const ValueType table{{batch, tokens, c.head_dim / 2}, DType::kF32, {}};
  const RopeTables rope = {graph->input("rope.cosine", table), graph->input("rope.sine", table)};
  Value x = embedding(ids, root["embed_tokens"].weight("weight", {c.vocab_size, c.hidden_size}));
  x = cast(x, options.activations);
  for (int64_t i = 0; i + 1 < c.layers; ++i) {
    const Scope s = root["layers"][std::to_string(i)];
    const auto region = graph->region("text_layer", s.name());
    x = x + attention(c, s["self_attn"], nn::rms_norm(s["input_layernorm"], x, c.norm_eps), rope);
    x = x + mlp(c, s["mlp"], nn::rms_norm(s["post_attention_layernorm"], x, c.norm_eps));
    if (options.tap_layers) graph->output("layer." + std::to_string(i), x);
  }
  graph->output("states", cast(x, DType::kF32));
  return graph;
}

std::map<std::string, Tensor> text_inputs(const Config& c, int64_t tokens,
                                          std::span<const std::vector<int32_t>> prompts) {
  const auto batch = static_cast<int64_t>(prompts.size());
  const int64_t half = c.head_dim / 2;
  Tensor ids = Tensor::zeros(DType::kI32, {batch, tokens});
  Tensor cosine = Tensor::empty(DType::kF32, {batch, tokens, half});
  Tensor sine = Tensor::empty(DType::kF32, {batch, tokens, half});
  for (int64_t b = 0; b < batch; ++b) {
    HT_ASSERT(static_cast<int64_t>(prompts[b].size()) <= tokens);
    for (size_t i = 0; i < prompts[b].size(); ++i) {
      HT_ASSERT(prompts[b][i] >= 0 && prompts[b][i] < c.vocab_size);
      ids.mutable_as<int32_t>()[b * tokens + static_cast<int64_t>(i)] = prompts[b][i];
    }
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < half; ++i) {
        // Frequencies and angles are floats there; the functions of them are not.
        const auto frequency = static_cast<float>(
            std::pow(c.rope_theta, -static_cast<double>(2 * i) / static_cast<double>(c.head_dim)));
        const double angle = static_cast<float>(t) * frequency;
        cosine.mutable_as<float>()[(b * tokens + t) * half + i] =
            static_cast<float>(std::cos(angle));
        sine.mutable_as<float>()[(b * tokens + t) * half + i] = static_cast<float>(std::sin(angle));
      }
    }
  }
  return {{"ids", ids}, {"rope.cosine", cosine}, {"rope.sine", sine}};
}

}  // namespace halftone::qwen3
