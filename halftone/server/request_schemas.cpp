// What requests may hold: the one place that says it.
#include "halftone/server/requests.h"

namespace halftone {
namespace {

using nlohmann::json;

std::vector<std::string> format_names_of(bool with_wide) {
  std::vector<std::string> names;
  for (const Format& format : all_formats()) {
    if (with_wide || format.quantized()) names.emplace_back(format.name);
  }
  return names;
}

std::vector<std::string> and_also(std::vector<std::string> names,
                                  std::initializer_list<const char*> more) {
  names.insert(names.begin(), more.begin(), more.end());
  return names;
}

ObjectSchema common_job(ObjectSchema schema) {
  schema.fields.push_back(
      Field::integer("priority", "Jobs of a higher one come first", -10, 10).or_else(0));
  schema.fields.push_back(
      Field::number("timeout", "Seconds from now after which it is given up", 0.001, 1e7));
  return schema;
}

}  // namespace

RequestSchemas::RequestSchemas(const RequestLimits& limits) {
  lora = {"Lora",
          "An adapter, and how strongly it is applied",
          {Field::text("name", "As GET /api/loras lists it").needed(),
           Field::number("strength", "Negative ones work against it", -10, 10).or_else(1.0)}};
  const auto model =
      Field::text("model", "As GET /api/models lists it (default: the first)").or_else("");
  const auto prompt = limits.most_prompt_bytes;
  generate = common_job(
      {"Generate",
       "Pictures from a prompt",
       {Field::text("prompt", "What to show", prompt).needed(),
        Field::text("negative",
                    "What to avoid; needs guidance. Models may take an empty one for another than "
                    "none",
                    prompt),
        model,
        Field::text("precision", "What the model computes in")
            .one_of(and_also(format_names_of(true), {"auto"}))
            .or_else("auto"),
        Field::text("size", "\"WxH\", instead of width and height", 20),
        Field::integer("width", "Pixels (default: the model's)", 1, 65536),
        Field::integer("height", "Pixels (default: the model's)", 1, 65536),
        Field::text("original_size",
                    "\"WxH\" of the picture that this one is told to be a part of "
                    "(defaults.original_size)",
                    20)
            .or_else(""),
        Field::text("crop", "\"X,Y\": where that part begins, from the left and the top", 20)
            .or_else(""),
        Field::integer("steps", "Denoising steps (default: the model's)", 1, limits.most_steps),
        Field::number("guidance", "Strength of the prompt (default: the model's)", 0, 100),
        Field::number("true_cfg",
                      "Strength against the negative prompt, of models that read guidance "
                      "themselves (defaults.true_cfg)",
                      0, 100)
            .or_else(0.0),
        Field::number("cache",
                      "A step cache: how much a step may differ from those before and still reuse "
                      "what the network's blocks added; 0 is off",
                      0, 1)
            .or_else(0.0),
        Field::text("skip_layers",
                    "\"7,8,9\": guide away from what the model predicts without these blocks, too "
                    "(defaults.skip_layers)",
                    1000)
            .or_else(""),
        Field::number("skip_layer_scale", "How strongly", 0, 100).or_else(2.8),
        Field::integer("seed", "Of the first picture (default: a random one)", 0, kMostSeed),
        Field::integer("count", "Pictures, with seed, seed + 1, ...", 1, limits.most_count)
            .or_else(1),
        Field::text("scheduler", "The sampler (default: the model's)").or_else(""),
        Field::objects("loras", "Adapters", 8, lora).or_else(json::array()),
        Field::boolean("previews", "Whether previews are made meanwhile").or_else(true)}});
  train = common_job(
      {"Train",
       "An adapter, or the model itself, from a folder of pictures",
       {Field::text("dataset", "As GET /api/datasets lists it").needed(),
        Field::text("name", "Of the result").needed(),
        model,
        Field::text("mode", "An adapter, all weights, or these for a format")
            .one_of({"lora", "full", "qat"})
            .or_else("lora"),
        Field::integer("steps", "Of the optimizer", 1, limits.most_train_steps).or_else(500),
        Field::integer("batch", "Pictures at a time", 1, 256).or_else(4),
        Field::integer("accumulate", "Batches for each step", 1, 256).or_else(1),
        Field::number("lr", "Learning rate (default: 1e-4, or 1e-5 for mode full and qat)", 0, 10),
        Field::text("schedule", "Of the learning rate")
            .one_of({"constant", "cosine"})
            .or_else("constant"),
        Field::integer("warmup", "Steps in which the rate rises", 0, limits.most_train_steps)
            .or_else(0),
        Field::text("optimizer", "adamw8bit takes less memory")
            .one_of({"adamw", "adamw8bit"})
            .or_else("adamw"),
        Field::integer("rank", "Of the adapter", 1, 1024).or_else(16),
        Field::number("alpha", "The adapter counts alpha / rank (default: rank)", 1e-6, 1e6),
        Field::texts("targets", "all, attention, or patterns of weights", 64, 200)
            .or_else(json::array({"all"})),
        Field::integer("resolution", "Side of a square (default: the model's)", 8, 8192),
        Field::text("precision", "What the base is stored in")
            .one_of(and_also(format_names_of(true), {"auto"}))
            .or_else("auto"),
        Field::text("backward", "What gradients are computed in")
            .one_of({"auto", "bf16", "fp8"})
            .or_else("auto"),
        Field::text("compile", "Whether operations are fused")
            .one_of({"auto", "on", "off"})
            .or_else("auto"),
        Field::text("recompute", "What is computed again instead of kept")
            .one_of({"none", "rows", "blocks"})
            .or_else("rows"),
        Field::text("trigger", "Before every caption", 200).or_else(""),
        Field::text("caption", "Of pictures that have none", prompt).or_else(""),
        Field::number("caption_dropout", "Share of pictures shown without their caption", 0, 1)
            .or_else(0.0),
        Field::number("dropout", "Share of what adapters read that is zero", 0, 0.99).or_else(0.0),
        Field::number("ema", "Write a running mean that forgets this slowly", 0, 0.999999)
            .or_else(0.0),
        Field::integer("seed", "Of everything that is drawn", 0, kMostSeed).or_else(0),
        Field::integer("save_every", "Steps between checkpoints; 0: only where it ends early", 0,
                       limits.most_train_steps)
            .or_else(100),
        Field::integer("sample_every", "Steps between pictures; 0: none", 0,
                       limits.most_train_steps)
            .or_else(0),
        Field::texts("sample_prompts", "What they show (default: the first captions)", 16, prompt)
            .or_else(json::array())}});
  quantize = common_job(
      {"Quantize",
       "A model in 8 or 4 bits, as a new model",
       {model, Field::text("name", "Of the new model").needed(),
        Field::text("format", "Of its linears").one_of(format_names_of(false)).needed(),
        Field::text("budget",
                    "A format for each linear: auto, cosine=C, or bytes=SIZE of the layers that "
                    "are quantized, "
                    "those that stay as they are not counted")
            .or_else(""),
        Field::boolean("calibrate", "Run prompts, and use what is seen").or_else(true),
        Field::integer("samples", "Pictures to calibrate on; 0: one per prompt", 0, 1000)
            .or_else(0),
        Field::integer("certify", "Pictures that the certificate is measured on", 0, 1000)
            .or_else(8),
        Field::integer("steps", "Of these pictures (default: the model's)", 1, limits.most_steps),
        Field::text("size", "\"WxH\" of these pictures (default: the model's)", 20),
        Field::integer("seed", "Of the first picture", 0, kMostSeed).or_else(0)}});
  compare =
      common_job({"Compare",
                  "What precisions do to a model, as a page",
                  {model,
                   Field::texts("precisions", "Precisions, or models that were quantized", 16, 200)
                       .or_else(json::array({"fp8", "mxfp8", "nvfp4"})),
                   Field::text("reference", "What they are compared with")
                       .one_of(format_names_of(true))
                       .or_else("bf16"),
                   Field::texts("prompts", "What pictures show (default: our own)", 64, prompt)
                       .or_else(json::array()),
                   Field::integer("seeds", "For each prompt", 1, 16).or_else(1),
                   Field::integer("steps", "Default: the model's", 1, limits.most_steps),
                   Field::integer("width", "Pixels (default: the model's)", 1, 65536),
                   Field::integer("height", "Pixels (default: the model's)", 1, 65536),
                   Field::integer("seed", "Of the first picture", 0, kMostSeed).or_else(0)}});
  dataset = {"Dataset", "A new folder of pictures", {Field::text("name", "Its name").needed()}};
  login = {"Login", "An API key for this browser", {Field::text("key", "The key", 500).needed()}};
}

}  // namespace halftone
