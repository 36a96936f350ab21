#include "halftone/server/generate_lane.h"

#include <algorithm>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/engine/checks.h"
#include "halftone/runtime/devices.h"

namespace halftone {
namespace {

using nlohmann::json;

void check_finite(const Tensor& x, const char* problem) {
  for (const float v : x.as<float>()) {
    if (!std::isfinite(v)) throw Error(ErrorCode::kInvalidInput, "model", "{}", problem);
  }
}

}  // namespace

GenerateLane::GenerateLane(Engine& engine, const Shelf& shelf, const ModelOnShelf& model,
                           const std::string& precision) {
  ModelSpec spec = shelf.spec(model, precision);
  spec.cancelled = [this] { return ended_ || wanted_ == 0; };
  loaded_ = engine.load(spec);
}

const std::string& GenerateLane::hash() {
  if (hash_.empty()) hash_ = loaded_.model->hash();
  return hash_;
}

GenerateRequest GenerateLane::request_of(const json& from, Shelf& shelf) {
  GenerateRequest request = loaded_.request(from.at("prompt"));
  if (from.contains("negative")) request.negative = from["negative"].get<std::string>();
  read_original_size(from.value("original_size", ""), "original_size", request.original);
  read_crop(from.value("crop", ""), "crop", request.original);
  request.width = from.at("width");
  request.height = from.at("height");
  request.steps = from.at("steps");
  request.guidance = from.at("guidance");
  request.true_cfg = from.value("true_cfg", 0.0f);
  request.cache = from.value("cache", 0.0f);
  request.skip.layers = parse_layers(from.value("skip_layers", ""), "skip_layers");
  request.skip.scale = from.value("skip_layer_scale", request.skip.scale);
  request.seed = from.at("seed");
  request.count = from.at("count");
  if (const std::string name = from.value("scheduler", ""); !name.empty()) {
    request.scheduler = with_scheduler(loaded_.sampling.scheduler, name);
  }
  for (const json& lora : from.value("loras", json::array())) {
    const AdapterOnShelf file = shelf.adapter(lora.at("name"));
    const std::string state = fmt::format("{} {}", file.bytes, file.changed);
    KnownAdapter& known = adapters_[file.path.string()];
    if (known.adapter == nullptr || known.state != state) {
      try {
        known = {state, loaded_.model->load_adapter(file.path.string())};
      } catch (const Error& error) {
        throw Error(error.code(), "loras", "'{}': {}", file.name, error.message());
      }
    }
    const auto strength = static_cast<float>(lora.value("strength", 1.0));
    known.adapter->lora().check_strength(strength);
    request.adapters.push_back({known.adapter, strength});
  }
  check(request, loaded_.sampling);
  return request;
}

ModelMemory GenerateLane::planned(const GenerateRequest& request, int rows) {
  GenerateRequest all = request;
  all.batch = all.count = std::max(1, rows);
  return plan_generate(pipeline(), all);
}

int64_t GenerateLane::held() const {
  int64_t weights = 0;
  for (const ModelPart* part : {&loaded_.model->denoiser_part(), &loaded_.model->codec_part()}) {
    for (const auto& [name, weight] : part->weights()) {
      const auto* quantized = std::get_if<QuantizedTensor>(&weight);
      const Tensor& stored = quantized != nullptr ? quantized->codes : std::get<Tensor>(weight);
      if (stored.mapped() || host_block_of(weight) != nullptr) continue;
      weights += byte_size_of(weight);
    }
  }
  return weights + held_;
}

int GenerateLane::room_for(const GenerateRequest& request, int most, int64_t limit,
                           int64_t reclaimable) {
  const bool on_cpu = loaded_.context == nullptr;
  for (int more = most; more > 0; --more) {
    const ModelMemory memory = planned(request, static_cast<int>(rows_.size()) + more);
    int64_t needed = memory.running() - held_;
    int64_t free = on_cpu ? available_memory() : loaded_.context->memory().free;
    if (limit > 0) {
      needed = memory.owned_weights + memory.running();
      free = limit;
    }
    if (needed <= free + reclaimable) {
      if (reclaimable == 0) held_ = std::max(held_, memory.running());
      return more;
    }
  }
  return 0;
}

template <class Run>
auto GenerateLane::run(const Run& run) {
  try {
    return run();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCancelled) {
      loaded_.pipeline = loaded_.make_pipeline();
      held_ = 0;
    }
    throw;
  }
}

void GenerateLane::begin(const std::shared_ptr<PictureJob>& job, int index) {
  JobRequest one = static_cast<const JobRequest&>(job->asked);
  one.seed = job->asked.seed + static_cast<uint64_t>(index);
  Job begun = run([&] { return Stepper(pipeline()).start(one); });
  rows_.push_back({job, index, std::move(begun), {}});
}

void GenerateLane::step() {
  std::vector<Job*> jobs;
  for (PictureRow& row : rows_) jobs.push_back(&row.job);
  run([&] { Stepper(pipeline()).step(jobs); });
  // On a CPU, products pack operands into memory of the heap, between whose pieces the rest of the
  // server keeps what is small and lasts. Given back at once, they do not spread over ever more
  // pages.
  if (loaded_.context == nullptr) give_back_freed_memory();
}

Tensor GenerateLane::picture(const PictureRow& row) {
  Stepper stepper(pipeline());
  check_finite(stepper.latents(row.job), "its latents hold NaN or Inf: are the weights damaged?");
  const Tensor image = run([&] { return stepper.picture(row.job); });
  check_finite(image, "its pixels hold NaN or Inf: is the VAE damaged?");
  return image.reshape({image.shape()[1], image.shape()[2], image.shape()[3]});
}

Tensor GenerateLane::preview(const PictureRow& row) {
  const Tensor image = run([&] { return Stepper(pipeline()).preview(row.job, row.before); });
  return image.reshape({image.shape()[1], image.shape()[2], image.shape()[3]});
}

}  // namespace halftone
