// A whole model: calibrated, its formats searched for, certified and written as a folder.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "halftone/engine/certificate.h"
#include "halftone/engine/engine.h"
#include "halftone/io/dialect.h"
#include "halftone/quantize/quantize_file.h"
#include "halftone/quantize/recipe_file.h"
#include "halftone/quantize/search.h"

namespace halftone {

// How pictures are sampled; what is not given is the model's.
struct SamplingChoice {
  std::optional<std::pair<int64_t, int64_t>> size;  // width and height
  std::optional<int> steps;
  std::optional<float> guidance;
  std::string scheduler;  // as in scheduler_choices()
  uint64_t seed = 0;      // of the first picture
};

// Scales of inputs. Auto: static where one scale spans rows.
enum class InputScales : uint8_t { kAuto, kDynamic, kStatic };

// Products of what is put side by side, such as attention and MLP in FLUX.1's single blocks, made
// one by one, so that each input has scales of its own. Auto: where that is nearer to the original.
enum class SplitInputs : uint8_t { kOff, kOn, kAuto };

// Errors name these fields.
struct QuantizeModelOptions {
  ModelSpec model;  // a folder; its precision and compile are not looked at
  SamplingChoice sampling;
  std::filesystem::path output;
  std::optional<Format> format;      // one of these two
  std::optional<RecipeFile> recipe;  //
  std::string recipe_name;           // of the file that it is from, for Errors
  std::optional<Budget> budget;
  Minimize minimize = Minimize::kBoth;
  std::optional<Rounding> rounding;  // without one: compensated with calibration
  InputScales activations = InputScales::kAuto;
  SplitInputs split_inputs = SplitInputs::kOff;
  Dialect dialect = Dialect::kHalftone;
  std::vector<std::string> include, exclude;  // patterns of weights
  bool calibrate = false;
  std::vector<std::string> prompts;  // none: our own
  std::string prompts_name;          // of the file that they are from, for notes
  int samples = 0;                   // pictures to calibrate on; 0: one per prompt
  int certify = 8;                   // pictures that the certificate is measured on
  int search_points = 8;   // predictions that each group of linears is measured on; 0: all
  int64_t max_memory = 0;  // of inputs' moments; 0: half of what is available
};

// Whether prompts are run at all: someone wants what is seen then.
bool calibrates(const QuantizeModelOptions& options);
// On a recipe's own prompts, as it was made.
bool calibrates_as_before(const QuantizeModelOptions& options);

// What the caller is told meanwhile. Any of them may be empty.
struct QuantizeModelEvents {
  struct Stage {
    std::string_view name;  // "calibrating"
    bool bytes = false;     // what is counted: bytes, or steps
  };
  // May throw Error{kCancelled}, as ModelSpec::cancelled ends the work.
  std::function<void(const Stage&, const Progress&)> progress;
  std::function<void()> stage_done;
  std::function<void(const std::string&)> note;  // a line: what was done otherwise than asked for
};

// A cosine that was asked for, and what became of it.
struct BudgetOutcome {
  double asked = 0, reached = 0;
  bool certified = false;  // reached by the certificate; otherwise on the search's own prompts

  bool met() const { return reached >= asked; }
};
std::string to_text(const BudgetOutcome& budget);  // one line

struct ModelQuantizeResult {
  std::string model, output, hash;  // paths, and the original's hash
  QuantizeRecipe recipe;
  FileQuantizeReport files;
  std::vector<QuantizeReport::Kept> kept;
  std::vector<std::string> not_finite;  // weights whose inputs are not
  std::optional<SearchResult> found;
  std::vector<std::string> cuts;  // weights whose inputs are split
  size_t points = 0;              // predictions that the search was measured on
  std::optional<BudgetOutcome> budget;
  std::optional<Certificate> certificate;
  std::string uncertified;  // why there is none, although it was measured
  double seconds = 0;
};

ModelQuantizeResult quantize_model(Engine& engine, const QuantizeModelOptions& options,
                                   const QuantizeModelEvents& events);

}  // namespace halftone
