#include "halftone/training/train_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "halftone/base/error.h"
#include "halftone/base/text.h"
#include "halftone/base/version.h"
#include "halftone/io/html_page.h"
#include "halftone/tensor/storage.h"

namespace halftone {
namespace {

constexpr const char *kInk = "#0b6e99", *kFaint = "#b9c9d1";

class TrainPage {
 public:
  TrainPage(const TrainResult& result, const TrainOptions& options) : r_(result), o_(options) {}

  std::string write() const {
    const std::string name = html_escape(o_.output.filename().string());
    std::string out = fmt::format(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" "
        "content=\"width=device-width\"><title>{0}: training</title><style>{1}"
        ".samples img{{width:100%;display:block}}.samples td{{white-space:normal;width:9em}}"
        "</style><h1>{0}</h1>",
        name, kPageStyle);
    out += fmt::format("<p>{} steps on {} pictures. Base {}, {} on {}. Halftone {}.</p>\n",
                       r_.curve.size(), r_.pictures, html_escape(r_.model.path),
                       html_escape(r_.model.precision.used), html_escape(r_.model.device.used),
                       version());
    return out + charts() + samples() + facts() + cosines() + notes() + "</html>\n";
  }

 private:
  // Means of at most so many parts of the run, and the step that each ends with.
  struct Course {
    std::vector<double> loss, smooth, gradient, rate;
    std::vector<std::string> steps;
  };
  Course course() const {
    constexpr size_t kMost = 200;
    Course c;
    const size_t count = r_.curve.size(), parts = std::min(kMost, count);
    double smooth = 0;
    for (size_t p = 0; p < parts; ++p) {
      const size_t begin = p * count / parts, end = (p + 1) * count / parts;
      double loss = 0, gradient = 0;
      for (size_t i = begin; i < end; ++i) {
        loss += r_.curve[i].loss;
        gradient += r_.curve[i].gradient_norm;
      }
      const auto n = static_cast<double>(end - begin);
      c.loss.push_back(loss / n);
      c.gradient.push_back(gradient / n);
      c.rate.push_back(r_.curve[end - 1].learning_rate);
      // A running mean over about a tenth of the run.
      const double share =
          p == 0 ? 1
                 : std::max(10.0 / static_cast<double>(parts), 1.0 / (static_cast<double>(p) + 1));
      smooth += std::min(1.0, share) * (loss / n - smooth);
      c.smooth.push_back(smooth);
      c.steps.push_back(std::to_string(r_.curve[end - 1].step));
    }
    return c;
  }

  std::string charts() const {
    const Course c = course();
    Chart loss("Loss", "step", c.steps, Chart::Scale::kLinear);
    loss.add({"each step", kFaint, false, c.loss});
    loss.add({"running mean", kInk, false, c.smooth});
    Chart gradient("Norm of the gradient", "step", c.steps);
    gradient.add({"gradient", kInk, false, c.gradient});
    Chart rate("Learning rate", "step", c.steps, Chart::Scale::kLinear);
    rate.add({"rate", kInk, false, c.rate});
    return "<h2>How it went</h2><div class=\"charts\">\n" + loss.svg() + held_out() +
           gradient.svg() + rate.svg() + "</div>\n";
  }

  std::string held_out() const {
    if (r_.held_out.empty()) return "";
    std::vector<std::string> steps;
    std::vector<double> losses;
    for (const HeldOutLoss& at : r_.held_out) {
      steps.push_back(std::to_string(at.step));
      losses.push_back(at.loss);
    }
    Chart chart(fmt::format("Loss on {} pictures that are not trained on", r_.held_out_pictures),
                "step", steps, Chart::Scale::kLinear);
    chart.add({"held out", kInk, false, losses});
    return chart.svg();
  }

  // The least like those in high precision first.
  std::string cosines() const {
    if (r_.cosines.empty()) return "";
    std::vector<Trainer::GradientCosine> sorted = r_.cosines;
    std::ranges::sort(sorted, {}, &Trainer::GradientCosine::cosine);
    std::string out =
        "<h2>Gradients beside those of a base in high precision</h2><table><tr><th>weight"
        "<th>cosine</tr>\n";
    for (const auto& [weight, cosine] : sorted) {
      out += fmt::format("<tr><td>{}<td>{:.6f}</tr>\n", html_escape(weight), cosine);
    }
    return out + "</table>\n";
  }

  static std::string picture(const SampleMade& sample) {
    try {
      const auto file = Storage::map_file(sample.path);
      const auto* bytes = reinterpret_cast<const char*>(file->bytes().data());
      return html_image({bytes, static_cast<size_t>(file->size())}, sample.prompt);
    } catch (const Error&) {
      return "(gone)";  // someone removed it meanwhile
    }
  }

  // A row for every prompt, a column for every step, at most so many of them.
  std::string samples() const {
    if (r_.samples.empty()) return "";
    constexpr size_t kMostColumns = 8;
    std::set<int64_t> all;
    std::vector<std::string> prompts;
    for (const SampleMade& sample : r_.samples) {
      all.insert(sample.step);
      if (std::find(prompts.begin(), prompts.end(), sample.prompt) == prompts.end()) {
        prompts.push_back(sample.prompt);
      }
    }
    const std::vector<int64_t> steps(all.begin(), all.end());
    std::set<int64_t> shown;
    const size_t columns = std::min(kMostColumns, steps.size());
    for (size_t i = 0; i < columns; ++i) {
      shown.insert(steps[columns == 1 ? 0 : i * (steps.size() - 1) / (columns - 1)]);
    }
    std::string out = "<h2>What it drew</h2><div class=\"wide\"><table class=\"samples\"><tr><th>";
    for (const int64_t step : shown) {
      out += step == 0 ? "<th>before" : fmt::format("<th>step {}", step);
    }
    for (const std::string& prompt : prompts) {
      out += "</tr>\n<tr><td>" + html_escape(prompt);
      for (const SampleMade& sample : r_.samples) {
        if (sample.prompt == prompt && shown.contains(sample.step)) out += "<td>" + picture(sample);
      }
    }
    return out + "</tr></table></div>\n";
  }

  std::string trained() const {
    if (o_.rules.mode != TrainMode::kLora) {
      return fmt::format("{} weights, {} values{}", r_.model.parts, r_.model.parameters,
                         o_.rules.teacher ? ", after a teacher in high precision" : "");
    }
    return fmt::format("an adapter of rank {}, alpha {}, on {} linears, {} values", o_.rules.rank,
                       o_.rules.alpha, r_.model.parts, r_.model.parameters);
  }

  std::string facts() const {
    std::string formats;
    for (const auto& [format, count] : r_.model.formats) {
      formats += fmt::format("{}{} linears in {}", formats.empty() ? "" : ", ", count, format);
    }
    std::string sizes;
    for (const auto& [size, count] : r_.sizes) {
      sizes += fmt::format("{}{} of {}", sizes.empty() ? "" : ", ", count, size);
    }
    const std::pair<const char*, std::string> rows[] = {
        {"speed", fmt::format("{} pictures/s, {} in all", three_digits(r_.samples_per_second),
                              human_seconds(r_.seconds))},
        {"memory", fmt::format("{} at most, {} planned", human_bytes(r_.peak_bytes),
                               human_bytes(r_.planned_bytes))},
        {"base",
         fmt::format("{} asked, {} used ({}){}", r_.model.precision.asked, r_.model.precision.used,
                     r_.model.precision.how, formats.empty() ? "" : "; " + formats)},
        {"backward", fmt::format("{} asked, {} used ({})", r_.model.backward.asked,
                                 r_.model.backward.used, r_.model.backward.how)},
        {"trained", trained()},
        {"batch", fmt::format("{} x {}", o_.rules.batch, o_.rules.accumulate)},
        {"pictures", sizes},
        {"seed", std::to_string(o_.rules.seed)}};
    std::string out = "<h2>How it was made</h2><table>";
    for (const auto& [name, value] : rows) {
      out += fmt::format("<tr><td>{}<td>{}</tr>\n", name, html_escape(value));
    }
    return out + "</table>\n";
  }

  std::string notes() const {
    std::string out;
    for (const std::string& note : r_.notes) out += "<li>" + html_escape(printable(note, 500));
    for (const SkippedFile& file : r_.skipped) {
      out += "<li>" + html_escape(printable(file.file)) + ": " + html_escape(file.why);
    }
    for (const auto& [weight, why] : r_.model.kept) {
      out += fmt::format("<li>{} stays as it is: {}", html_escape(weight), html_escape(why));
    }
    return out.empty() ? "" : "<h2>Notes</h2><ul>" + out + "</ul>\n";
  }

  const TrainResult& r_;
  const TrainOptions& o_;
};

}  // namespace

std::string train_page(const TrainResult& result, const TrainOptions& options) {
  return TrainPage(result, options).write();
}

}  // namespace halftone
