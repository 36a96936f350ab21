// How halftone.h calls halftone_c.h. The namespace `api` keeps these classes apart from those
// inside a library that is linked statically; no file may include both this and the engine's own
// headers.
#pragma once

#include <exception>

namespace halftone {
inline namespace api {

namespace detail {

inline void check(halftone_status status) {
  if (status == HALFTONE_OK) return;
  throw Error(status, halftone_last_error(), halftone_last_error_field());
}

inline std::vector<std::string> lines(const char* const* texts, size_t count) {
  return std::vector<std::string>(texts, texts + count);
}

// As C has it, where a text ends at its first NUL.
inline const char* text_in_c(const std::string& text, const char* field) {
  if (text.find('\0') == std::string::npos) return text.c_str();
  const std::string message = std::string(field) + ": holds a NUL byte, at which it would end";
  throw Error(HALFTONE_USAGE, message.c_str(), field);
}

// A request as C has it; what it points to must outlive it.
class RequestInC {
 public:
  RequestInC(const halftone_model* model, const Request& from) {
    check(halftone_request_init(model, &in_c, sizeof in_c));
    for (const auto& [adapter, strength] : from.adapters) {
      adapters_.push_back(adapter.get());
      strengths_.push_back(strength);
    }
    in_c.prompt = text_in_c(from.prompt, "prompt");
    if (from.negative) in_c.negative = text_in_c(*from.negative, "negative");
    if (!from.scheduler.empty()) in_c.scheduler = text_in_c(from.scheduler, "scheduler");
    in_c.width = from.width;
    in_c.height = from.height;
    in_c.steps = from.steps;
    in_c.guidance = from.guidance;
    in_c.seed = from.seed;
    in_c.count = from.count;
    in_c.batch = from.batch;
    in_c.adapter_count = adapters_.size();
    in_c.adapters = adapters_.data();
    in_c.strengths = strengths_.data();
    in_c.max_memory = from.max_memory;
    in_c.true_cfg = from.true_cfg;
    in_c.cache = from.cache;
    if (!from.skip_layers.empty()) in_c.skip_layers = text_in_c(from.skip_layers, "skip_layers");
    in_c.skip_layer_scale = from.skip_layer_scale;
    in_c.original_width = from.original_width;
    in_c.original_height = from.original_height;
    in_c.crop_left = from.crop_left;
    in_c.crop_top = from.crop_top;
  }
  RequestInC(const RequestInC&) = delete;
  RequestInC& operator=(const RequestInC&) = delete;

  halftone_request in_c;

 private:
  std::vector<const halftone_adapter*> adapters_;
  std::vector<float> strengths_;
};

// An exception waits here until C is behind us.
struct Callback {
  const ProgressFn& progress;
  std::exception_ptr thrown;

  static int call(void* user, const halftone_progress* progress) {
    auto& self = *static_cast<Callback*>(user);
    try {
      return self.progress(*progress) ? 0 : 1;
    } catch (...) {
      self.thrown = std::current_exception();
      return 1;
    }
  }
};

}  // namespace detail

inline Error::Error(halftone_status status, const char* message, const char* field)
    : std::runtime_error(message), status_(status), field_(field) {}

inline std::span<const uint8_t> Picture::rgb() const {
  return {view_.rgb, static_cast<size_t>(3 * view_.width * view_.height)};
}
inline std::span<const float> Picture::pixels() const {
  return {view_.pixels, static_cast<size_t>(3 * view_.width * view_.height)};
}
inline std::span<const int64_t> Picture::latent_shape() const {
  return {view_.latent_shape, view_.latent_rank};
}
inline std::span<const float> Picture::latents() const {
  size_t count = view_.latents == nullptr ? 0 : 1;
  for (const int64_t size : latent_shape()) count *= static_cast<size_t>(size);
  return {view_.latents, count};
}
inline void Picture::write_png(const std::string& path) const {
  detail::check(halftone_result_write_png(result_.get(), index_, detail::text_in_c(path, "path")));
}

inline Request Model::request(const std::string& prompt) const {
  halftone_request defaults;
  detail::check(halftone_request_init(handle_.get(), &defaults, sizeof defaults));
  Request request;
  request.prompt = prompt;
  request.width = defaults.width;
  request.height = defaults.height;
  request.steps = defaults.steps;
  request.guidance = defaults.guidance;
  return request;
}

inline std::vector<Picture> Model::generate(const Request& request,
                                            const ProgressFn& progress) const {
  detail::RequestInC asked(handle_.get(), request);
  detail::Callback callback{progress, nullptr};
  if (progress) {
    asked.in_c.progress = detail::Callback::call;
    asked.in_c.user = &callback;
  }
  halftone_result* made = nullptr;
  const halftone_status status = halftone_generate(handle_.get(), &asked.in_c, &made);
  if (callback.thrown) std::rethrow_exception(callback.thrown);
  detail::check(status);
  const std::shared_ptr<halftone_result> result(made, halftone_result_free);
  halftone_result_info info;
  detail::check(halftone_result_describe(made, &info, sizeof info));
  std::vector<Picture> pictures(info.count);
  for (size_t i = 0; i < pictures.size(); ++i) {
    pictures[i].result_ = result;
    pictures[i].index_ = i;
    detail::check(halftone_result_picture(made, i, &pictures[i].view_, sizeof(halftone_picture)));
  }
  return pictures;
}

inline halftone_memory Model::plan(const Request& request) const {
  const detail::RequestInC asked(handle_.get(), request);
  halftone_memory memory;
  detail::check(halftone_plan(handle_.get(), &asked.in_c, &memory, sizeof memory));
  return memory;
}

inline Adapter Model::adapter(const std::string& file) const {
  halftone_adapter* made = nullptr;
  detail::check(halftone_adapter_load(handle_.get(), detail::text_in_c(file, "file"), &made));
  Adapter adapter;
  adapter.handle_.reset(made, halftone_adapter_free);
  return adapter;
}

inline ModelInfo Model::info() const {
  halftone_model_info info;
  detail::check(halftone_model_describe(handle_.get(), &info, sizeof info));
  ModelInfo out;
  out.path = info.path;
  out.family = info.family;
  out.precision = info.precision;
  out.precision_how = info.precision_how;
  out.precision_why = info.precision_why;
  out.device = info.device;
  out.threads = info.threads;
  out.fallbacks = detail::lines(info.fallbacks, info.fallback_count);
  return out;
}

inline Engine::Engine() {
  halftone_engine* made = nullptr;
  detail::check(halftone_engine_create(&made));
  handle_.reset(made, halftone_engine_free);
}

inline Model Engine::load(const ModelOptions& options) const {
  halftone_model_options asked;
  detail::check(halftone_model_options_init(&asked, sizeof asked));
  asked.path = detail::text_in_c(options.path, "path");
  asked.base = detail::text_in_c(options.base, "base");
  asked.precision = detail::text_in_c(options.precision, "precision");
  asked.device = detail::text_in_c(options.device, "device");
  asked.compile = detail::text_in_c(options.compile, "compile");
  asked.text_precision = detail::text_in_c(options.text_precision, "text_precision");
  asked.threads = options.threads;
  asked.strict = options.strict ? 1 : 0;
  asked.threshold = options.threshold;
  halftone_model* made = nullptr;
  detail::check(halftone_model_load(handle_.get(), &asked, &made));
  Model model;
  model.handle_.reset(made, halftone_model_free);
  return model;
}

}  // namespace api
}  // namespace halftone
