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

// The base of the rotation's frequencies, which newer files keep in an object of its own.
double rope_theta(const ConfigReader& read) {
  constexpr double kMost = 1e12;
  double theta = read.number("rope_theta", 0, 1, kMost);
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    if (!read.has(name)) continue;
    const ConfigReader rope = read.object(name);
    rope.must_be("rope_type", "default");
    rope.must_be("type", "default");  // as older files call it
    rope.must_be("partial_rotary_factor", 1.0);
    theta = rope.number("rope_theta", theta, 1, kMost);
    rope.finish();
  }
  if (theta == 0) read.fail("rope_theta", "is missing");
  return theta;
}

// Fields of transformers that concern training, sampling of words, or what a file is stored as.
void ignore_what_only_generates_text(const ConfigReader& read) {
  read.ignore({"architectures",
               "attention_dropout",
               "bos_token_id",
               "dtype",
               "eos_token_id",
               "id2label",
               "initializer_range",
               "is_decoder",
               "is_encoder_decoder",
               "label2id",
               "max_position_embeddings",
               "max_window_layers",
               "output_attentions",
               "output_hidden_states",
               "pad_token_id",
               "problem_type",
               "quantization_config",
               "return_dict",
               "sliding_window",
               "tie_word_embeddings",
               "tokenizer_class",
               "torch_dtype",
               "transformers_version",
               "unsloth_fixed",
               "unsloth_version",
               "use_cache"});
}

}  // namespace

Config parse_config(const nlohmann::json& json, const std::string& where) {
  const ConfigReader read(json, where);
  Config c;
  read.must_be("model_type", "qwen3");
  read.must_be("hidden_act", "silu");
  read.must_be("attention_bias", false);
  read.must_be("use_sliding_window", false);
  read.must_hold_only("layer_types", "full_attention");
  // Every file has these, and defaults differ between versions of transformers.
  read.require({"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                "num_attention_heads", "num_key_value_heads", "rms_norm_eps"});
  constexpr int64_t kMost = 1 << 20, kMostOfHeads = 1 << 12;
  c.vocab_size = read.integer("vocab_size", 0, 1, 1 << 24);
  c.hidden_size = read.integer("hidden_size", 0, 1, kMost);
  c.intermediate_size = read.integer("intermediate_size", 0, 1, kMost);
  c.layers = read.integer("num_hidden_layers", 0, 1, 1000);
  c.heads = read.integer("num_attention_heads", 0, 1, kMostOfHeads);
  c.kv_heads = read.integer("num_key_value_heads", 0, 1, kMostOfHeads);
  c.head_dim = read.integer("head_dim", 128, 2, kMostOfHeads);
  c.norm_eps = static_cast<float>(read.number("rms_norm_eps", 0, 1e-12, 1));
  c.rope_theta = rope_theta(read);
  ignore_what_only_generates_text(read);
  read.finish();
  if (c.heads % c.kv_heads != 0) {
    read.fail("num_key_value_heads", "does not divide 'num_attention_heads'");
  }
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
