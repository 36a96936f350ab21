#include "halftone/models/clip_text/text_encoder.h"

#include <algorithm>

#include "halftone/io/config_reader.h"
#include "halftone/nn/attention.h"

namespace halftone::clip_text {
namespace {

using nn::Bias;
using nn::Scope;

Value attention(const Config& c, const Scope& s, Value x) {
  const auto project = [&](const char* name) {
    const Value y = nn::linear(s[name], x, c.hidden_size, Bias::kYes);
    return nn::split_heads(y, c.hidden_size / c.heads);
  };
  nn::AttendOptions how;
  how.causal = true;
  const Value y = nn::attend(project("q_proj"), project("k_proj"), project("v_proj"), how);
  return nn::linear(s["out_proj"], y, c.hidden_size, Bias::kYes);
}

Value mlp(const Config& c, const Scope& s, Value x) {
  const Value inner = nn::linear(s["fc1"], x, c.intermediate_size, Bias::kYes);
  return nn::linear(s["fc2"], apply(c.activation, inner), c.hidden_size, Bias::kYes);
}

}  // namespace

Config clip_l() { return {}; }

Config big_g() {
  Config c;
  c.hidden_size = 1280;
  c.intermediate_size = 5120;
  c.layers = 32;
  c.heads = 20;
  c.activation = Function::kErfGelu;
  c.projection = 1280;
  return c;
}

Config parse_config(const nlohmann::json& json, const std::string& where) {
  const ConfigReader read(json, where);
  Config c;
  read.must_be("model_type", "clip_text_model");
  read.must_be_one_of("hidden_act", {"quick_gelu", "gelu"});
  // What a file leaves out is as transformers has it: the widths of a smaller model.
  read.require({"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"});
  constexpr int64_t kMost = 1 << 20, kMostOfHeads = 1 << 12;
  c.vocab_size = read.integer("vocab_size", 49408, 1, 1 << 24);
  c.hidden_size = read.integer("hidden_size", 0, 1, kMost);
  c.intermediate_size = read.integer("intermediate_size", 0, 1, kMost);
  c.layers = read.integer("num_hidden_layers", 0, 1, 1000);
  c.heads = read.integer("num_attention_heads", 0, 1, kMostOfHeads);
  c.positions = read.integer("max_position_embeddings", 77, 1, kMost);
  const bool quick = read.text("hidden_act", "quick_gelu") == "quick_gelu";
  c.activation = quick ? Function::kQuickGelu : Function::kErfGelu;
  c.norm_eps = static_cast<float>(read.number("layer_norm_eps", 1e-5, 1e-12, 1));
  c.projection = read.integer("projection_dim", 512, 1, kMost);
  c.eos = static_cast<int32_t>(read.integer("eos_token_id", 49407, 0, (1 << 24) - 1));
  // About training, other ways to make a prompt's ids, and what a file is stored as.
  read.ignore({"architectures", "attention_dropout", "bos_token_id", "dropout", "dtype",
               "gradient_checkpointing", "id2label", "initializer_factor", "initializer_range",
               "label2id", "output_attentions", "output_hidden_states", "pad_token_id",
               "problem_type", "quantization_config", "return_dict", "tie_word_embeddings",
               "torch_dtype", "transformers_version"});
  read.finish();
  if (c.hidden_size % c.heads != 0)
    read.fail("num_attention_heads", "does not divide 'hidden_size'");
  if (c.eos >= c.vocab_size) read.fail("eos_token_id", "is no id of 'vocab_size'");
  return c;
}

int64_t layers_run(const Config& c, const Options& options) {
  const int64_t states = options.states_after.value_or(0);
  HT_ASSERT(states >= 0 && states <= c.layers);
  HT_ASSERT(options.pooled || (options.states_after && !options.projected));
  return options.pooled ? c.layers : states;
}

std::shared_ptr<Graph> build_text_encoder(const Config& c, int64_t batch, int64_t tokens,
                                          const Options& options) {
  HT_ASSERT(tokens <= c.positions);
  auto graph = std::make_shared<Graph>();
  const Scope root(*graph, ""), model = root["text_model"];
  const Value ids = graph->input("ids", {{batch, tokens}, DType::kI32, {}});
  const Scope embeddings = model["embeddings"];
  const Value positions =
      embeddings["position_embedding"].weight("weight", {c.positions, c.hidden_size});
  Value x =
      embedding(ids, embeddings["token_embedding"].weight("weight", {c.vocab_size, c.hidden_size}));
  x = cast(x + slice(positions, 0, 0, tokens), options.activations);
  const auto keep = [&](const std::string& name, Value value) {
    graph->output(name, cast(value, DType::kF32));
  };
  if (options.states_after == 0) keep("states", x);
  for (int64_t i = 0; i < layers_run(c, options); ++i) {
    const Scope s = model["encoder"]["layers"][std::to_string(i)];
    const auto region = graph->region("text_layer", s.name());
    x = x + attention(c, s["self_attn"], nn::layer_norm(s["layer_norm1"], x, c.norm_eps));
    x = x + mlp(c, s["mlp"], nn::layer_norm(s["layer_norm2"], x, c.norm_eps));
    if (options.tap_layers) keep("layer." + std::to_string(i), x);
    if (options.states_after == i + 1) keep("states", x);
  }
  if (!options.pooled) return graph;
  // Rows are normed alone: only those that are taken.
  const Value ends = graph->input("ends", {{batch, 1}, DType::kI32, {}});
  const Value taken = embedding(ends, reshape(x, {batch * tokens, c.hidden_size}));
  Value pooled = nn::layer_norm(model["final_layer_norm"], taken, c.norm_eps);
  if (options.projected) {
    pooled = nn::linear(root["text_projection"], pooled, c.projection, Bias::kNo);
  }
  keep("pooled", reshape(pooled, {batch, pooled.dim(2)}));
  return graph;
}

int64_t end_of(const Config& c, std::span<const int32_t> ids) {
  constexpr int32_t kLargestId = 2;
  const auto end = c.eos == kLargestId ? std::max_element(ids.begin(), ids.end())
                                       : std::find(ids.begin(), ids.end(), c.eos);
  if (end == ids.end()) {
    throw Error(ErrorCode::kInvalidInput, "prompt", "has no token {}, which ends it", c.eos);
  }
  return end - ids.begin();
}

std::map<std::string, Tensor> text_inputs(const Config& c, const Options& options, int64_t tokens,
                                          std::span<const std::vector<int32_t>> prompts) {
  const auto batch = static_cast<int64_t>(prompts.size());
  Tensor ids = Tensor::empty(DType::kI32, {batch, tokens});
  Tensor ends = Tensor::empty(DType::kI32, {batch, 1});  // of all rows as one table
  for (int64_t b = 0; b < batch; ++b) {
    HT_ASSERT(static_cast<int64_t>(prompts[b].size()) == tokens);
    for (const int32_t id : prompts[b]) HT_ASSERT(id >= 0 && id < c.vocab_size);
    std::copy(prompts[b].begin(), prompts[b].end(),
              ids.mutable_as<int32_t>().begin() + static_cast<std::ptrdiff_t>(b * tokens));
    if (!options.pooled) continue;
    ends.mutable_as<int32_t>()[b] = static_cast<int32_t>(b * tokens + end_of(c, prompts[b]));
  }
  std::map<std::string, Tensor> inputs = {{"ids", ids}};
  if (options.pooled) inputs["ends"] = ends;
  return inputs;
}

}  // namespace halftone::clip_text
