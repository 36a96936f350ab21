#include "halftone/quantize/convert_file.h"

#include <algorithm>
#include <map>
#include <set>

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/io/dialect_markers.h"
#include "halftone/io/dialect_writer.h"
#include "halftone/io/output.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

class FileConverter {
 public:
  FileConverter(const Checkpoint& input, const FileConvertOptions& options,
                const ProgressFn& progress)
      : input_(input),
        options_(options),
        progress_(progress),
        stored_(read_stored_weights(input, options.read)) {}

  FileConvertReport run(const fs::path& output) {
    const std::string file = input_.path().string();
    check_explained(stored_, file);
    report_.from = stored_.dialect;
    for (const auto& part : input_.files()) report_.file_bytes_before += part->file_size();
    plan(output.string());
    if (infos_.empty()) {
      throw Error(ErrorCode::kInvalidInput, file,
                  "holds no quantized weight; 'halftone quantize' makes them");
    }
    SafetensorsWriter writer(output, specs_, metadata());
    write(writer);
    for (const auto& part : input_.files()) part->check_intact();
    writer.finish();
    report_.file_bytes_after = writer.file_size();
    write_config(output);
    return std::move(report_);
  }

 private:
  // Plain FP8 that is no layer's weight needs no scale where FP8 may stand for itself.
  bool stays(const StoredWeight& weight) const {
    return options_.to == Dialect::kComfyUI && weight.scales.empty() &&
           !weight.name.ends_with(".weight");
  }

  void plan(const std::string& output) {
    for (const Checkpoint::Item& item : input_.items()) {
      const TensorEntry& entry = *item.entry;
      const auto part = stored_.consumed.find(entry.name);
      const StoredWeight* weight =
          part == stored_.consumed.end() ? nullptr : stored_.find(part->second);
      if (part == stored_.consumed.end() || (weight != nullptr && stays(*weight))) {
        specs_.push_back({entry.name, entry.dtype, entry.shape});
        copied_.push_back(&item);
        ++report_.copied;
        report_.copied_bytes += entry.byte_size();
      }
    }
    for (const auto& [name, weight] : stored_.weights) {
      if (stays(weight)) continue;
      WeightInfo info{name, weight.format,      weight.shape,
                      1,    weight.input_scale, weight.full_precision};
      info.global_scale = stored_global_scale(input_, weight);
      planned_[name] = plan_tensors(options_.to, info, output);
      for (const PlannedTensor& tensor : planned_[name]) specs_.push_back(tensor.spec);
      infos_.push_back(std::move(info));
    }
    std::sort(infos_.begin(), infos_.end(),
              [](const auto& a, const auto& b) { return natural_less(a.name, b.name); });
    check_names();
  }

  // A new part may have the name of a tensor that is copied.
  void check_names() const {
    std::set<std::string_view> names;
    for (const TensorSpec& spec : specs_) {
      if (!names.insert(spec.name).second) {
        throw Error(ErrorCode::kInvalidInput, input_.path().string(),
                    "tensor '{}' has the name that a part of a weight would get",
                    printable(spec.name));
      }
    }
  }

  // The input's own, without what it says about the old dialect.
  Metadata metadata() const {
    Metadata out = input_.metadata();
    for (const char* key : {kQuantizationKey, kNotesKey, kDialectKey, kComfyMetadataKey}) {
      out.erase(key);
    }
    if (stored_.dialect == Dialect::kTorchao) {
      out.erase("tensor_names");
      for (const auto& [name, weight] : stored_.weights) out.erase(name);
      for (const Checkpoint::Item& item : input_.items()) out.erase(item.entry->name);
    }
    std::vector<std::string> others;
    for (const Checkpoint::Item* item : copied_) others.push_back(item->entry->name);
    out.merge(dialect_metadata(options_.to, infos_, others));
    return out;
  }

  void write(SafetensorsWriter& writer) {
    const int64_t total = input_.tensor_bytes();
    int64_t done = 0;
    for (const WeightInfo& info : infos_) {
      progress_({info.name, done, total});
      const StoredWeight& weight = stored_.weights.at(info.name);
      const QuantizedTensor q = load_stored(input_, weight);
      for (const PlannedTensor& tensor : planned_.at(info.name)) {
        const Tensor made = tensor.make(q);
        HT_ASSERT(made.dtype() == tensor.spec.dtype && made.shape() == tensor.spec.shape);
        writer.write(tensor.spec.name, made.bytes());
      }
      done += q.byte_size();
      report_.converted_bytes += q.byte_size();
      report_.converted.push_back({info.name, std::string(info.format.name), info.shape,
                                   info.input_scale.has_value(), info.full_precision});
    }
    for (const Checkpoint::Item* item : copied_) {
      auto bytes = item->file->bytes(*item->entry);
      constexpr size_t kChunk = 16 << 20;  // short enough to cancel
      while (!bytes.empty()) {
        const auto chunk = bytes.first(std::min(kChunk, bytes.size()));
        progress_({item->entry->name, std::min(done, total), total});
        writer.write(item->entry->name, chunk);
        bytes = bytes.subspan(chunk.size());
        done += static_cast<int64_t>(chunk.size());
      }
    }
    progress_({"syncing", total, total});
  }

  // Beside the output and named after it: a config.json that is there already is another's.
  void write_config(const fs::path& output) {
    std::vector<std::string> kept;
    for (const Checkpoint::Item* item : copied_) {
      const std::string& name = item->entry->name;
      if (item->entry->shape.rank() == 2 && name.ends_with(".weight")) {
        kept.push_back(name.substr(0, name.size() - std::string_view(".weight").size()));
      }
    }
    const auto config = dialect_config(options_.to, infos_, kept);
    if (!config) return;
    fs::path path = output;
    path.replace_extension("." + config->name + ".json");
    write_file(path, config->json + "\n");
    report_.config = path;
  }

  const Checkpoint& input_;
  const FileConvertOptions& options_;
  const ProgressFn& progress_;
  const StoredWeights stored_;
  std::vector<WeightInfo> infos_;
  std::map<std::string, std::vector<PlannedTensor>> planned_;
  std::vector<TensorSpec> specs_;
  std::vector<const Checkpoint::Item*> copied_;
  FileConvertReport report_;
};

}  // namespace

FileConvertReport convert_file(const fs::path& input, const fs::path& output,
                               const FileConvertOptions& options, const ProgressFn& progress) {
  const Checkpoint checkpoint = Checkpoint::open(input);
  for (const auto& file : checkpoint.files()) {
    std::error_code ignored;
    if (fs::equivalent(file->path(), output, ignored)) {
      throw Error(ErrorCode::kUsage, output.string(), "the output is the input; name another file");
    }
  }
  return FileConverter(checkpoint, options, progress).run(output);
}

}  // namespace halftone
