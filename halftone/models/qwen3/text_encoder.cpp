#include "halftone/models/qwen3/text_encoder.h"

#include <algorithm>
#include <cmath>

#include "halftone/io/config_reader.h"
#include "halftone/nn/attention.h"

namespace halftone::qwen3 {
namespace {

using nn::Bias;
using nn::RopeTables;
using nn::Scope;

struct Sequence {
  RopeTables rope;
  std::optional<Value> lengths;  // what follows them is attended by nothing
};

Value attention(const Config& c, const Scope& s, Value x, const Sequence& sequence) {
  const auto project = [&](const char* name, int64_t heads) {
    return nn::split_heads(nn::linear(s[name], x, heads * c.head_dim, Bias::kNo), c.head_dim);
  };
  const auto rotated = [&](const char* norm, Value v) {
    return nn::norm_and_rotate(s[norm], v, c.norm_eps, sequence.rope, RopeLayout::kHalves);
  };
  const Value q = rotated("q_norm", project("q_proj", c.heads));
  const Value k = rotated("k_norm", project("k_proj", c.kv_heads));
  const Value y = nn::attend(q, k, project("v_proj", c.kv_heads), {sequence.lengths, true});
  return nn::linear(s["o_proj"], y, c.hidden_size, Bias::kNo);
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

std::vector<int64_t> wanted_states(const Config& c, const Options& options) {
  return options.states_after.empty() ? std::vector{c.layers - 1} : options.states_after;
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

int64_t layers_run(const Config& c, const Options& options) {
  const auto wanted = wanted_states(c, options);
  for (const int64_t after : wanted) HT_ASSERT(after >= 0 && after < c.layers);
  return *std::max_element(wanted.begin(), wanted.end());
}

std::shared_ptr<Graph> build_text_encoder(const Config& c, int64_t batch, int64_t tokens,
                                          const Options& options) {
  auto graph = std::make_shared<Graph>();
  const Scope root = Scope(*graph, "")["model"];
  const Value ids = graph->input("ids", {{batch, tokens}, DType::kI32, {}});
  const ValueType table{{batch, tokens, c.head_dim / 2}, DType::kF32, {}};
  Sequence sequence{{graph->input("rope.cosine", table), graph->input("rope.sine", table)}, {}};
  if (options.lengths) sequence.lengths = graph->input("lengths", {{batch}, DType::kI32, {}});

  Value x = embedding(ids, root["embed_tokens"].weight("weight", {c.vocab_size, c.hidden_size}));
  x = cast(x, options.activations);
  std::map<int64_t, Value> states = {{0, x}};
  for (int64_t i = 0; i < layers_run(c, options); ++i) {
    const Scope s = root["layers"][std::to_string(i)];
    const auto region = graph->region("text_layer", s.name());
    x = x +
        attention(c, s["self_attn"], nn::rms_norm(s["input_layernorm"], x, c.norm_eps), sequence);
    x = x + mlp(c, s["mlp"], nn::rms_norm(s["post_attention_layernorm"], x, c.norm_eps));
    if (options.tap_layers) graph->output("layer." + std::to_string(i), x);
    states[i + 1] = x;
  }
  std::vector<Value> taken;
  for (const int64_t after : wanted_states(c, options))
    taken.push_back(cast(states.at(after), DType::kF32));
  graph->output("states", taken.size() == 1 ? taken[0] : concat(taken, 2));
  return graph;
}

std::map<std::string, Tensor> text_inputs(const Config& c, int64_t tokens,
                                          std::span<const std::vector<int32_t>> prompts,
                                          std::optional<int32_t> pad) {
  const auto batch = static_cast<int64_t>(prompts.size());
  const int64_t half = c.head_dim / 2;
  Tensor ids = Tensor::zeros(DType::kI32, {batch, tokens});
  Tensor lengths = Tensor::zeros(DType::kI32, {batch});
  Tensor cosine = Tensor::empty(DType::kF32, {batch, tokens, half});
  Tensor sine = Tensor::empty(DType::kF32, {batch, tokens, half});
  HT_ASSERT(!pad || (*pad >= 0 && *pad < c.vocab_size));
  std::fill_n(ids.mutable_as<int32_t>().begin(), ids.numel(), pad.value_or(0));
  for (int64_t b = 0; b < batch; ++b) {
    HT_ASSERT(static_cast<int64_t>(prompts[b].size()) <= tokens);
    lengths.mutable_as<int32_t>()[b] = static_cast<int32_t>(prompts[b].size());
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
  std::map<std::string, Tensor> inputs = {
      {"ids", ids}, {"rope.cosine", cosine}, {"rope.sine", sine}};
  if (pad) inputs["lengths"] = lengths;
  return inputs;
}

}  // namespace halftone::qwen3
