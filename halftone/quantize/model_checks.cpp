#include "halftone/quantize/model_checks.h"

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/base/text.h"
#include "halftone/engine/checks.h"
#include "halftone/io/dialect_writer.h"
#include "halftone/io/output.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;

void check_formats(const QuantizeModelOptions& o) {
  if (!o.recipe && !o.format) throw Error(ErrorCode::kUsage, "format", "is needed, or a recipe");
  if (o.recipe && o.format) {
    throw Error(ErrorCode::kUsage, "format", "and a recipe both say which format");
  }
  if (o.recipe && o.budget) {
    throw Error(ErrorCode::kUsage, "budget", "makes a recipe, and one is given");
  }
  const Format& format = o.recipe ? o.recipe->recipe.format : *o.format;
  if (format.tile_rows != 1 && o.rounding == Rounding::kCompensated) {
    throw Error(ErrorCode::kUsage, "rounding", "{} is rounded to nearest only", format.name);
  }
}

void check_split(const QuantizeModelOptions& o) {
  if (o.split_inputs == SplitInputs::kAuto && !o.budget) {
    throw Error(ErrorCode::kUsage, "split_inputs", "auto is for a search: give a budget as well");
  }
  if (o.split_inputs != SplitInputs::kOff && o.recipe) {
    throw Error(ErrorCode::kUsage, "split_inputs", "and a recipe both say which inputs are split");
  }
  const bool splits = o.split_inputs != SplitInputs::kOff || (o.recipe && !o.recipe->cuts.empty());
  if (splits && o.dialect != Dialect::kHalftone) {
    throw Error(ErrorCode::kUnsupported, "split_inputs",
                "weights in two parts cannot be written for {}, which has no names for them",
                to_string(o.dialect));
  }
}

// What the dialect cannot hold is known before the work.
void check_dialect(const QuantizeModelOptions& o) {
  check_dialect_holds(o.dialect, o.recipe ? o.recipe->recipe.format : *o.format);
  if (!o.recipe) return;
  for (const auto& rule : o.recipe->recipe.rules) check_dialect_holds(o.dialect, rule.format);
}

template <class T>
void check_range(const char* field, T value, T least, T most) {
  if (value >= least && value <= most) return;  // what is no number is in no range
  throw Error(ErrorCode::kUsage, field, "{} is not from {} to {}", value, least, most);
}

void check_numbers(const QuantizeModelOptions& o) {
  check_range("samples", o.samples, 0, 100000);
  check_range("certify", o.certify, 0, 10000);
  check_range("search_points", o.search_points, 0, 10000);
  check_range<int64_t>("max_memory", o.max_memory, 0, INT64_MAX);
  check_range("steps", o.sampling.steps.value_or(1), 1, kMostSteps);
  check_range("guidance", o.sampling.guidance.value_or(0), 0.0f, 100.0f);
  if (o.budget && o.budget->cosine) check_range("budget", *o.budget->cosine, 0.0, 1.0);
}

void check_patterns(const char* field, const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    if (is_valid_utf8(pattern)) continue;
    throw Error(ErrorCode::kUsage, field, "'{}' is not UTF-8", printable(pattern));
  }
}

}  // namespace

void check(const QuantizeModelOptions& o) {
  check(o.model);
  check_formats(o);
  check_numbers(o);
  if (o.output.empty()) throw Error(ErrorCode::kUsage, "output", "is needed");
  if (!o.model.path.empty()) {
    if (!is_folder(o.model.path)) {
      throw Error(ErrorCode::kUsage, "model", "{} '{}'",
                  path_exists(o.model.path) ? "needs a folder, not" : "there is no folder",
                  printable(o.model.path));
    }
    check_apart(o.output, o.model.path);
  }
  check_output_folder(o.output, kRecipeName);
  check_split(o);
  check_dialect(o);
  if (o.sampling.seed > static_cast<uint64_t>(INT64_MAX)) {
    throw Error(ErrorCode::kUsage, "seed", "{} is more than a recipe can hold, {}", o.sampling.seed,
                INT64_MAX);
  }
  check_patterns("include", o.include);
  check_patterns("exclude", o.exclude);
}

void check_apart(const fs::path& output, const std::string& model) {
  std::error_code ignored;
  const std::string a = (fs::weakly_canonical(model, ignored) / "").string(),
                    b = (fs::weakly_canonical(output, ignored) / "").string();
  if (!a.starts_with(b) && !b.starts_with(a)) return;
  if (a == b) throw Error(ErrorCode::kUsage, output.string(), "the output is the input");
  throw Error(ErrorCode::kUsage, output.string(),
              "the output and the model '{}' lie one within the other", printable(model));
}

std::string why_not_held(Dialect dialect, const Format& format) {
  if (!format.quantized()) return {};
  const WeightInfo weight{"layer.weight", format, {256, 256}, 1, {}, false};
  return why_not_in(dialect, weight);
}

void check_dialect_holds(Dialect dialect, const Format& format) {
  const std::string why = why_not_held(dialect, format);
  if (why.empty()) return;
  throw Error(ErrorCode::kUnsupported, "dialect", "{} cannot be written for {}: {}", format.name,
              to_string(dialect), why);
}

}  // namespace halftone
