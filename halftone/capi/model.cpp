#include "halftone/capi/model.h"

#include <dlfcn.h>

#include <filesystem>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/capi/run.h"
#include "halftone/capi/structs.h"
#include "halftone/engine/checks.h"

namespace halftone::capi {
namespace {

namespace fs = std::filesystem;

std::string text(const char* value) { return value == nullptr ? "" : value; }

constexpr halftone_model_options kDefaults = {sizeof(halftone_model_options),
                                              /*path=*/nullptr,
                                              /*base=*/nullptr,
                                              "auto",
                                              "auto",
                                              "auto",
                                              /*threads=*/0,
                                              /*strict=*/0,
                                              /*threshold=*/0.99,
                                              /*text_precision=*/nullptr};

ModelSpec spec_of(const halftone_model_options& options) {
  ModelSpec spec;
  spec.path = text(options.path);
  if (spec.path.empty()) spec.path = installed_model();
  spec.base = text(options.base);
  if (options.precision != nullptr) spec.precision = options.precision;
  if (options.device != nullptr) spec.device = options.device;
  if (options.compile != nullptr) spec.compile = options.compile;
  if (options.text_precision != nullptr) spec.text_precision = options.text_precision;
  spec.threads = options.threads;
  spec.strict = options.strict != 0;
  spec.threshold = options.threshold;
  spec.cancelled = Run::ended;
  return spec;
}

}  // namespace

SharedModel::SharedModel(LoadedModel loaded, bool strict)
    : loaded_(std::move(loaded)), strict_(strict) {
  for (const std::string& line : loaded_.fallbacks) fallbacks_.push_back(line.c_str());
  idle_.push_back({std::move(loaded_.pipeline), 0});
}

std::string SharedModel::hash() const {
  std::call_once(hashed_, [&] { hash_ = loaded_.model->hash(); });
  return hash_;
}

Worker SharedModel::take() {
  {
    const std::scoped_lock lock(mutex_);
    if (!idle_.empty()) {
      Worker worker = std::move(idle_.back());
      idle_.pop_back();
      return worker;
    }
  }
  return {loaded_.make_pipeline(), 0};
}

void SharedModel::give_back(Worker worker) {
  const std::scoped_lock lock(mutex_);
  idle_.push_back(std::move(worker));
}

Lease::~Lease() {
  if (!running_) model_->give_back(std::move(worker_));
}

std::string installed_model() {
  if (std::string beside = default_model(); !beside.empty()) return beside;
  Dl_info self{};
  if (::dladdr(reinterpret_cast<const void*>(&halftone_version), &self) == 0) return {};
  std::error_code ignored;
  fs::path folder = fs::canonical(self.dli_fname, ignored).parent_path();
  // lib, or lib/x86_64-linux-gnu.
  for (int level = 0; level < 2; ++level) {
    folder = folder.parent_path();
    const fs::path model = folder / "share/halftone/models/emoji";
    if (path_exists(model / "model_index.json")) return model.string();
  }
  return {};
}

}  // namespace halftone::capi

using halftone::capi::check_not_null;
using halftone::capi::guarded;

halftone_status halftone_engine_create(halftone_engine** engine) {
  return guarded([&] {
    check_not_null(engine, "engine");
    *engine = nullptr;
    *engine = new halftone_engine();
  });
}

void halftone_engine_free(halftone_engine* engine) { delete engine; }

halftone_status halftone_model_options_init(halftone_model_options* options, size_t size) {
  return guarded([&] {
    halftone::capi::write_struct(halftone::capi::kDefaults, options, size, "options");
    options->size = size;
  });
}

halftone_status halftone_model_load(halftone_engine* engine, const halftone_model_options* options,
                                    halftone_model** model) {
  return guarded([&] {
    check_not_null(model, "model");
    *model = nullptr;
    check_not_null(engine, "engine");
    const halftone::ModelSpec spec = halftone::capi::spec_of(
        halftone::capi::read_struct(options, halftone::capi::kDefaults, "options"));
    check(spec);
    halftone::capi::start_pool(spec.threads);
    auto made = std::make_unique<halftone_model>();
    made->shared =
        std::make_shared<halftone::capi::SharedModel>(engine->engine.load(spec), spec.strict);
    *model = made.release();
  });
}

void halftone_model_free(halftone_model* model) { delete model; }

halftone_status halftone_model_describe(const halftone_model* model, halftone_model_info* info,
                                        size_t size) {
  return guarded([&] {
    check_not_null(model, "model");
    const halftone::LoadedModel& loaded = model->shared->loaded();
    const auto& fallbacks = model->shared->fallbacks();
    halftone_model_info out{};
    out.path = loaded.path.c_str();
    out.family = loaded.model->family().name.data();  // a literal
    out.precision = loaded.precision.used.c_str();
    out.precision_how = loaded.precision.how.c_str();
    out.precision_why = loaded.precision.why.c_str();
    out.device = loaded.device.used.c_str();
    out.threads = loaded.threads;
    out.fallback_count = fallbacks.size();
    out.fallbacks = fallbacks.data();
    halftone::capi::write_struct(out, info, size, "info");
  });
}

halftone_status halftone_adapter_load(const halftone_model* model, const char* file,
                                      halftone_adapter** adapter) {
  return guarded([&] {
    check_not_null(adapter, "adapter");
    *adapter = nullptr;
    check_not_null(model, "model");
    check_not_null(file, "file");
    auto made = std::make_unique<halftone_adapter>();
    made->model = model->shared;
    made->adapter = model->shared->loaded().model->load_adapter(file);
    const auto& unmatched = made->adapter->lora().report().unmatched;
    if (model->shared->strict() && !unmatched.empty()) {
      throw halftone::Error(halftone::ErrorCode::kFallback, file,
                            "{} of its tensors match nothing in the model, such as '{}'",
                            unmatched.size(), halftone::printable(unmatched[0]));
    }
    *adapter = made.release();
  });
}

void halftone_adapter_free(halftone_adapter* adapter) { delete adapter; }
