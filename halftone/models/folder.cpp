#include "halftone/models/folder.h"

#include <nlohmann/json.hpp>

#include "halftone/base/files.h"
#include "halftone/io/config_reader.h"
#include "halftone/io/json.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// A component is written as [library, class]; [null, null] where there is none.
void check_component(const ConfigReader& read, const char* name,
                     std::initializer_list<std::string_view> classes) {
  if (!read.has(name)) return;
  const json& entry = read.field(name);
  if (entry == json{nullptr, nullptr}) return;  // whoever needs it will miss its folder
  const bool pair = entry.is_array() && entry.size() == 2;
  if (!pair || !entry[1].is_string()) read.fail(name, "is not [library, class]");
  for (const std::string_view known : classes) {
    if (entry[1] == known) return;
  }
  read.fail(name, fmt::format("is a {}, and only {} is supported",
                              printable(entry[1].get_ref<const std::string&>()), *classes.begin()));
}

}  // namespace

std::optional<std::string> pipeline_of(const fs::path& folder) {
  const fs::path index = folder / "model_index.json";
  if (!path_exists(index)) return std::nullopt;
  const json content = read_json_file(index);
  if (!content.is_object()) return std::nullopt;
  const json name = content.value("_class_name", json());
  return name.is_string() ? std::optional(name.get<std::string>()) : std::nullopt;
}

void check_model_index(const fs::path& folder, std::string_view pipeline,
                       std::initializer_list<KnownPart> parts,
                       void (*read_more)(const ConfigReader&)) {
  const fs::path index = folder / "model_index.json";
  if (!path_exists(index)) return;
  const json content = read_json_file(index);
  const std::string where = index.string();
  const ConfigReader read(content, where);
  read.must_be("_class_name", pipeline);
  for (const KnownPart& part : parts) check_component(read, part.name, part.classes);
  for (const auto& [name, value] : content.items()) {
    if (value == json{nullptr, nullptr}) read.ignore({name.c_str()});
  }
  if (read_more != nullptr) read_more(read);
  read.finish();
}

SchedulerConfig scheduler_in(const fs::path& folder, const char* usual_class) {
  const fs::path file = folder / "scheduler" / "scheduler_config.json";
  json content = read_python_json_file(file);  // DPM-Solver++'s has -Infinity
  if (content.is_object() && !content.contains("_class_name")) content["_class_name"] = usual_class;
  return parse_scheduler_config(content, file.string());
}

SchedulerConfig scheduler_of(const ModelFiles& files, const char* usual_class,
                             const nlohmann::json& usual) {
  const bool there = path_exists(files.of("scheduler") / "scheduler_config.json");
  if (there || files.denoiser.empty()) return scheduler_in(files.base, usual_class);
  json content = usual;
  content["_class_name"] = usual_class;
  return parse_scheduler_config(content, "the usual scheduler");
}

bool has_config(const ModelFiles& files, std::string_view part) {
  return !files.holds(part) || path_exists(files.of(part) / "config.json");
}

void check_tokenizer_config(const fs::path& folder, const Tokenizer& tokenizer) {
  const fs::path file = folder / "tokenizer_config.json";
  if (!path_exists(file)) return;
  const json content = read_json_file(file);
  const std::string where = file.string();
  const ConfigReader read(content, where);
  read.must_be_one_of("tokenizer_class", {"Qwen2Tokenizer", "Qwen2TokenizerFast",
                                          "PreTrainedTokenizerFast", "TokenizersBackend"});
  for (const char* other : {"add_bos_token", "add_eos_token", "add_prefix_space", "do_lower_case",
                            "split_special_tokens"}) {
    read.must_be(other, false);
  }
  // These become tokens even where tokenizer.json has none of them.
  if (read.has("added_tokens_decoder")) {
    const json& added = read.field("added_tokens_decoder");
    if (!added.is_object()) read.fail("added_tokens_decoder", "is not an object");
    for (const auto& [id, token] : added.items()) {
      const bool named =
          token.is_object() && token.contains("content") && token["content"].is_string();
      const auto known =
          named ? tokenizer.find(token["content"].get_ref<const std::string&>()) : std::nullopt;
      if (!known || std::to_string(*known) != id) {
        read.fail("added_tokens_decoder",
                  fmt::format("has a token '{}' that tokenizer.json has not", printable(id)));
      }
    }
  }
  // chat_template: see io/chat_template.h. The rest is about decoding, padding, which is not
  // attended, and cutting, which is not done.
  read.ignore({"additional_special_tokens",
               "backend",
               "bos_token",
               "chat_template",
               "clean_up_tokenization_spaces",
               "cls_token",
               "eos_token",
               "errors",
               "extra_special_tokens",
               "is_local",
               "legacy",
               "mask_token",
               "max_length",
               "model_max_length",
               "model_specific_special_tokens",
               "name_or_path",
               "pad_token",
               "padding_side",
               "processor_class",
               "return_token_type_ids",
               "sep_token",
               "truncation_side",
               "unk_token"});
  read.finish();
}

}  // namespace halftone
