// Halftone in C++: diffusion models that turn a prompt into pictures. This header is all of it.
//
//   halftone::Engine engine;
//   halftone::Model model = engine.load({.path = "Z-Image-Turbo", .precision = "fp8"});
//   halftone::Request request = model.request("a lighthouse at dusk");  // the model's own size,
//   ... request.seed = 7; std::vector<halftone::Picture> pictures = model.generate(request);
//   pictures[0].write_png("lighthouse.png");
//
// Errors are thrown as halftone::Error. All classes are handles: copies are cheap and share what
// they stand for, and any number of threads may use them at once. Fields mean what those of the
// same name mean in halftone_c.h, which this is a wrapper of; only C crosses the library's border.
#pragma once

#include <halftone/halftone_c.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace halftone {
inline namespace api {

class Error : public std::runtime_error {  // what(): one line
 public:
  Error(halftone_status status, const char* message, const char* field);
  halftone_status status() const { return status_; }
  const std::string& field() const { return field_; }  // the file or the field that is wrong

 private:
  halftone_status status_;
  std::string field_;
};

struct ModelOptions {
  std::string path = "";  // empty: the model that is installed with Halftone
  std::string base = "";
  std::string precision = "auto", device = "auto", compile = "auto";
  std::string text_precision = "auto";  // of the text encoders' weights
  int threads = 0;
  bool strict = false;
  double threshold = 0.99;
};
struct ModelInfo {
  std::string path, family, precision, precision_how, precision_why, device;
  int threads = 0;
  std::vector<std::string> fallbacks;  // a line each
};

class Adapter {  // from Model::adapter
 public:
  const halftone_adapter* get() const { return handle_.get(); }

 private:
  friend class Model;
  std::shared_ptr<halftone_adapter> handle_;
};

struct Request {  // from Model::request
  std::string prompt;
  std::optional<std::string> negative = {};  // none is not always the same as an empty one
  int64_t width = 0, height = 0;
  int steps = 0;
  float guidance = 0;
  uint64_t seed = 0;
  int count = 1, batch = 1;
  std::string scheduler = "";                            // empty: the model's own
  std::vector<std::pair<Adapter, float>> adapters = {};  // with strengths
  int64_t max_memory = 0;
  float true_cfg = 0;            // where the network reads `guidance` itself; 0: none
  float cache = 0;               // how much tokens may change before blocks run again
  std::string skip_layers = "";  // "7,8,9"
  float skip_layer_scale = 0;    // 0: the usual
  int64_t original_width = 0, original_height = 0, crop_left = 0, crop_top = 0;
};

// Called between steps and, on the CPU, several times a second: true goes on, false ends the run
// with an Error of status HALFTONE_CANCELLED. What it throws, generate throws.
using ProgressFn = std::function<bool(const halftone_progress&)>;

class Picture {
 public:
  int64_t width() const { return view_.width; }
  int64_t height() const { return view_.height; }
  uint64_t seed() const { return view_.seed; }
  std::span<const uint8_t> rgb() const;    // [height, width, 3]
  std::span<const float> pixels() const;   // [3, height, width], about -1 to 1
  std::span<const float> latents() const;  // of latent_shape
  std::span<const int64_t> latent_shape() const;
  void write_png(const std::string& path) const;

 private:
  friend class Model;
  std::shared_ptr<halftone_result> result_;
  size_t index_ = 0;
  halftone_picture view_ = {};
};

class Model {  // from Engine::load
 public:
  Request request(const std::string& prompt) const;
  std::vector<Picture> generate(const Request& request, const ProgressFn& progress = {}) const;
  halftone_memory plan(const Request& request) const;  // without running it
  Adapter adapter(const std::string& file) const;
  ModelInfo info() const;

 private:
  friend class Engine;
  std::shared_ptr<halftone_model> handle_;
};

class Engine {
 public:
  Engine();
  Model load(const ModelOptions& options = {}) const;

 private:
  std::shared_ptr<halftone_engine> handle_;
};

}  // namespace api
}  // namespace halftone

#include <halftone/halftone_inline.h>
