#include "halftone/models/t5/text_encoder.h"

#include <algorithm>
#include <cmath>

#include "halftone/io/config_reader.h"
#include "halftone/nn/attention.h"

namespace halftone::t5 {
namespace {

using nn::Bias;
using nn::Scope;

// Where each bucket of one direction begins: one for each of the first distances, then wider ones
// in a geometric series. In integers once: distances that lie on a border, such as powers of two,
// would fall to either side of a logarithm.
std::vector<int64_t> bucket_starts(const Config& c) {
  const int64_t count = c.buckets / 2, exact = count / 2;
  std::vector<int64_t> starts;
  for (int64_t b = 0; b < exact; ++b) starts.push_back(b);
  const double ratio = std::log(static_cast<double>(c.max_distance) / static_cast<double>(exact));
  for (int64_t b = exact; b < count; ++b) {
    const double share = static_cast<double>(b - exact) / static_cast<double>(count - exact);
    const double start = static_cast<double>(exact) * std::exp(ratio * share);
    const double nearest = std::round(start);
    const bool on_border = std::abs(start - nearest) <= 1e-9 * start;
    starts.push_back(static_cast<int64_t>(on_border ? nearest : std::ceil(start)));
  }
  return starts;
}

int64_t bucket_in(const Config& c, const std::vector<int64_t>& starts, int64_t distance) {
  const auto after = std::upper_bound(starts.begin(), starts.end(), std::abs(distance));
  return (after - starts.begin()) - 1 + (distance > 0 ? c.buckets / 2 : 0);
}

// I32 [T, T]: the bucket of every query and key.
Tensor buckets_of(const Config& c, int64_t tokens) {
  const auto starts = bucket_starts(c);
  Tensor buckets = Tensor::empty(DType::kI32, {tokens, tokens});
  for (int64_t q = 0; q < tokens; ++q) {
    for (int64_t k = 0; k < tokens; ++k) {
      buckets.mutable_as<int32_t>()[q * tokens + k] =
          static_cast<int32_t>(bucket_in(c, starts, k - q));
    }
  }
  return buckets;
}

// What is added to scores, [H, T, T].
Value position_bias(const Config& c, const Scope& attention, Value buckets, DType activations) {
  const Value table = attention["relative_attention_bias"].weight("weight", {c.buckets, c.heads});
  return cast(permute(embedding(buckets, table), {2, 0, 1}), activations);
}

Value attention(const Config& c, const Scope& s, Value x, const nn::AttendOptions& how) {
  const auto project = [&](const char* name) {
    return nn::split_heads(nn::linear(s[name], x, c.heads * c.head_dim, Bias::kNo), c.head_dim);
  };
  const Value y = nn::attend(project("q"), project("k"), project("v"), how);
  return nn::linear(s["o"], y, c.hidden_size, Bias::kNo);
}

Value mlp(const Config& c, const Scope& s, Value x) {
  const Value gate = gelu(nn::linear(s["wi_0"], x, c.intermediate_size, Bias::kNo));
  const Value up = nn::linear(s["wi_1"], x, c.intermediate_size, Bias::kNo);
  return nn::linear(s["wo"], gate * up, c.hidden_size, Bias::kNo);
}

}  // namespace

Config xxl() { return {}; }

Config parse_config(const nlohmann::json& json, const std::string& where) {
  const ConfigReader read(json, where);
  Config c;
  read.must_be("model_type", "t5");
  read.must_be("feed_forward_proj", "gated-gelu");
  read.must_be("dense_act_fn", "gelu_new");
  read.must_be("is_gated_act", true);
  read.must_be("is_decoder", false);
  // What a file leaves out is as transformers has it: the widths of a smaller model.
  read.require({"d_model", "d_ff", "d_kv", "num_layers", "num_heads", "feed_forward_proj"});
  constexpr int64_t kMost = 1 << 20, kMostOfHeads = 1 << 12;
  c.vocab_size = read.integer("vocab_size", 32128, 1, 1 << 24);
  c.hidden_size = read.integer("d_model", 0, 1, kMost);
  c.intermediate_size = read.integer("d_ff", 0, 1, kMost);
  c.head_dim = read.integer("d_kv", 0, 1, kMostOfHeads);
  c.layers = read.integer("num_layers", 0, 1, 1000);
  c.heads = read.integer("num_heads", 0, 1, kMostOfHeads);
  c.buckets = read.integer("relative_attention_num_buckets", 32, 4, 1 << 12);
  c.max_distance = read.integer("relative_attention_max_distance", 128, 2, kMost);
  c.norm_eps = static_cast<float>(read.number("layer_norm_epsilon", 1e-6, 1e-12, 1));
  // About training, writing text, and what a file is stored as.
  read.ignore({"architectures",
               "bos_token_id",
               "classifier_dropout",
               "decoder_start_token_id",
               "dropout_rate",
               "dtype",
               "eos_token_id",
               "id2label",
               "initializer_factor",
               "is_encoder_decoder",
               "label2id",
               "n_positions",
               "num_decoder_layers",
               "output_attentions",
               "output_hidden_states",
               "output_past",
               "pad_token_id",
               "problem_type",
               "quantization_config",
               "return_dict",
               "scale_decoder_outputs",
               "task_specific_params",
               "tie_word_embeddings",
               "tokenizer_class",
               "torch_dtype",
               "transformers_version",
               "use_cache"});
  read.finish();
  if (c.buckets % 4 != 0) read.fail("relative_attention_num_buckets", "is no multiple of 4");
  if (c.max_distance <= c.buckets / 4) {
    read.fail("relative_attention_max_distance",
              "leaves no distance to half of 'relative_attention_num_buckets'");
  }
  return c;
}

int64_t bucket_of(const Config& c, int64_t distance) {
  return bucket_in(c, bucket_starts(c), distance);
}

std::shared_ptr<Graph> build_text_encoder(const Config& c, int64_t batch, int64_t tokens,
                                          const Options& options) {
  auto graph = std::make_shared<Graph>();
  const Scope root(*graph, ""), encoder = root["encoder"];
  const Value ids = graph->input("ids", {{batch, tokens}, DType::kI32, {}});
  const Value buckets = graph->constant("buckets", buckets_of(c, tokens));
  nn::AttendOptions how;
  how.scale = 1.0f;
  if (options.lengths) how.lengths = graph->input("lengths", {{batch}, DType::kI32, {}});
  Value x = embedding(ids, root["shared"].weight("weight", {c.vocab_size, c.hidden_size}));
  x = cast(x, options.activations);
  for (int64_t i = 0; i < c.layers; ++i) {
    const Scope s = encoder["block"][std::to_string(i)]["layer"];
    const Scope self = s["0"], feed_forward = s["1"];
    // Made by no layer where all read it.
    if (i == 0 || c.bias_of_each_layer) {
      how.bias = position_bias(c, self["SelfAttention"], buckets, options.activations);
    }
    const auto region = graph->region("text_layer", encoder["block"][std::to_string(i)].name());
    x = x +
        attention(c, self["SelfAttention"], nn::rms_norm(self["layer_norm"], x, c.norm_eps), how);
    x = x + mlp(c, feed_forward["DenseReluDense"],
                nn::rms_norm(feed_forward["layer_norm"], x, c.norm_eps));
    if (options.tap_layers) graph->output("layer." + std::to_string(i), cast(x, DType::kF32));
  }
  x = nn::rms_norm(encoder["final_layer_norm"], x, c.norm_eps);
  graph->output("states", cast(x, DType::kF32));
  return graph;
}

std::map<std::string, Tensor> text_inputs(const Config& c, const Options& options, int64_t tokens,
                                          std::span<const std::vector<int32_t>> prompts) {
  const auto batch = static_cast<int64_t>(prompts.size());
  Tensor ids = Tensor::zeros(DType::kI32, {batch, tokens});
  Tensor lengths = Tensor::empty(DType::kI32, {batch});
  for (int64_t b = 0; b < batch; ++b) {
    HT_ASSERT(static_cast<int64_t>(prompts[b].size()) <= tokens);
    for (const int32_t id : prompts[b]) HT_ASSERT(id >= 0 && id < c.vocab_size);
    std::copy(prompts[b].begin(), prompts[b].end(),
              ids.mutable_as<int32_t>().begin() + static_cast<std::ptrdiff_t>(b * tokens));
    lengths.mutable_as<int32_t>()[b] = static_cast<int32_t>(prompts[b].size());
  }
  std::map<std::string, Tensor> inputs = {{"ids", ids}};
  if (options.lengths) inputs["lengths"] = lengths;
  return inputs;
}

}  // namespace halftone::t5
