// The files of a model folder that say what its parts are: model_index.json, and the tokenizer's
// settings beside tokenizer.json.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "halftone/diffusion/scheduler.h"
#include "halftone/io/config_reader.h"
#include "halftone/io/tokenizer.h"
#include "halftone/models/family.h"

namespace halftone {

// The pipeline that the folder's model_index.json names; nothing where there is none.
std::optional<std::string> pipeline_of(const std::filesystem::path& folder);

// A part of a model, and the classes that are implemented here, the usual one first.
struct KnownPart {
  const char* name;
  std::initializer_list<std::string_view> classes;
};
// An Error where model_index.json names a part that is not one of these, such as another
// scheduler, or parts that are not known. `read_more` reads the pipeline's own fields.
void check_model_index(const std::filesystem::path& folder, std::string_view pipeline,
                       std::initializer_list<KnownPart> parts,
                       void (*read_more)(const ConfigReader&) = nullptr);

// The scheduler of a folder; one that does not name its class is the usual one.
SchedulerConfig scheduler_in(const std::filesystem::path& folder, const char* usual_class);
// The same of a model: beside a single file there may be none, and then it is `usual`.
SchedulerConfig scheduler_of(const ModelFiles& files, const char* usual_class,
                             const nlohmann::json& usual);

// Whether a part has a config.json to read. Without one it is told by the tensors of the file that
// holds the part; a folder of weights has to have one.
bool has_config(const ModelFiles& files, std::string_view part);

// An Error where tokenizer_config.json asks for something that tokenizer.json does not say already.
// A folder without the file is as good.
void check_tokenizer_config(const std::filesystem::path& folder, const Tokenizer& tokenizer);

}  // namespace halftone
