#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "halftone/base/text.h"
#include "halftone/io/html_page.h"
#include "halftone/io/png.h"
#include "halftone/quantize/parity_report.h"

namespace halftone {
namespace {

// One hue per precision; the floor is grey and dashed.
constexpr const char* kColors[] = {"#0b6e99", "#c4501b", "#5a8f29",
                                   "#8a3ffc", "#b8860b", "#00857c"};
constexpr const char* kFloorColor = "#888888";

class Page {
 public:
  explicit Page(const ParityReport& report) : r_(report) {
    for (const ParityResult& result : r_.results) {
      const bool floor = result.name == "floor";
      colors_.push_back(floor ? kFloorColor : kColors[colors_.size() % std::size(kColors)]);
    }
  }

  std::string write() const {
    std::string out = fmt::format(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" "
        "content=\"width=device-width\"><title>{0}: precisions compared</title><style>{1}</style>"
        "<h1>{0}: precisions compared with {2}</h1>",
        html_escape(name_of_model()), kPageStyle, html_escape(r_.reference));
    out += fmt::format(
        "<p>{} prompts, {} seed{} each, {} steps at {}x{}, guidance {}, on {}. Model {}. Halftone "
        "{}.</p>\n",
        r_.options.prompts.size(), r_.options.seeds, r_.options.seeds == 1 ? "" : "s",
        r_.options.steps, r_.options.width, r_.options.height, r_.options.guidance,
        html_escape(r_.device), html_escape(r_.hash), html_escape(r_.version));
    return out + summary() + charts() + pictures() + notes() + "</html>\n";
  }

 private:
  std::string name_of_model() const {
    const size_t slash = r_.model.find_last_of('/', r_.model.size() - 2);
    return slash == std::string::npos ? r_.model : r_.model.substr(slash + 1);
  }

  static std::string key(const char* color) {
    return fmt::format("<span class=\"key\" style=\"background:{}\"></span>", color);
  }

  std::string summary() const {
    std::string out =
        "<h2>Summary</h2><div class=\"wide\"><table><tr><th>precision<th>velocity cosine, "
        "mean<th>5% "
        "tail<th>worst<th>velocity error<th>latents after the run<th>SSIM<th>PSNR<th>weights<th>a "
        "step</tr>\n";
    for (size_t i = 0; i < r_.results.size(); ++i) {
      const ParityResult& p = r_.results[i];
      const bool floor = p.name == "floor";
      out += fmt::format(
          "<tr><td>{}{}<td>{:.6f}<td>{:.6f}<td>{:.6f}<td>{:.2e}<td>{:.5f}<td>{:.4f}<td>{:.1f} "
          "dB<td>{}<td>{}</tr>\n",
          key(colors_[i]),
          floor ? fmt::format("{} disturbed by {:g}", html_escape(r_.reference),
                              r_.options.disturbance)
                : html_escape(fmt::format("{} ({})", p.name, p.how)),
          p.velocity_cosine_all.mean, p.velocity_cosine_all.tail, p.velocity_cosine_all.worst,
          p.velocity_error_all.mean, p.rollout_cosine.back().mean, p.ssim.mean,
          std::min(p.psnr.mean, 99.9), floor ? "" : human_bytes(p.weight_bytes),
          floor ? "" : human_seconds(p.seconds_per_step));
    }
    return out + "</table></div>\n" + text_states();
  }

  // Where only the encoders are in another precision, everything above follows from these.
  std::string text_states() const {
    std::string rows;
    for (size_t i = 0; i < r_.results.size(); ++i) {
      if (!r_.results[i].of_text) continue;
      for (const TextParity& t : r_.results[i].texts) {
        rows +=
            fmt::format("<tr><td>{}{}<td>{}<td>{}<td>{:.6f}<td>{:.6f}<td>{:.6f}</tr>\n",
                        key(colors_[i]), html_escape(r_.results[i].name), html_escape(t.encoder),
                        html_escape(t.output), t.cosine.mean, t.cosine.tail, t.cosine.worst);
      }
    }
    if (rows.empty()) return {};
    return "<h2>What text encoders give</h2><div class=\"wide\"><table><tr><th>precision<th>"
           "encoder<th>output<th>cosine of a token, mean<th>5% tail<th>worst</tr>\n" +
           rows + "</table></div>\n";
  }

  template <class Values>
  std::string chart(const std::string& title, const std::string& below,
                    const std::vector<std::string>& ticks, const Values& values) const {
    Chart made(title, below, ticks);
    for (size_t i = 0; i < r_.results.size(); ++i) {
      const bool floor = r_.results[i].name == "floor";
      made.add({r_.results[i].name, colors_[i], floor, values(r_.results[i])});
    }
    return made.svg();
  }

  std::string charts() const {
    std::vector<std::string> sigmas, after, layers;
    for (size_t k = 0; k + 1 < r_.run.sigmas.size(); ++k) {
      sigmas.push_back(fmt::format("{:.2f}", r_.run.sigmas[k]));
      after.push_back(std::to_string(k + 1));
    }
    const auto lost = [](const std::vector<Spread>& cosines) {
      std::vector<double> y;
      for (const Spread& s : cosines) y.push_back(1 - s.mean);
      return y;
    };
    std::string out = "<h2>Where it is lost</h2><p>";
    for (size_t i = 0; i < r_.results.size(); ++i) {
      out += key(colors_[i]) + html_escape(r_.results[i].name) + " &nbsp; ";
    }
    out += "</p><div class=\"charts\">\n";
    out += chart("1 - cosine of the velocity, same input", "sigma", sigmas,
                 [&](const ParityResult& p) { return lost(p.velocity_cosine); });
    out += chart("1 - cosine of the latents, whole run", "steps done", after,
                 [&](const ParityResult& p) { return lost(p.rollout_cosine); });
    out += chart("1 - cosine of the latents after one step (hides errors)", "sigma", sigmas,
                 [&](const ParityResult& p) { return lost(p.step_cosine); });
    for (const auto& [name, error] : r_.results[0].layer_error) layers.push_back(name);
    if (!layers.empty()) {
      out += chart("Relative error of each block's output", "block", layers,
                   [](const ParityResult& p) {
                     std::vector<double> y;
                     for (const auto& [name, error] : p.layer_error) y.push_back(error);
                     return y;
                   });
    }
    return out + "</div>\n";
  }

  static std::string image(const Tensor& picture, const std::string& title) {
    return html_image(encode_png(picture), title);
  }

  std::string pictures() const {
    constexpr size_t kMost = 12;
    std::string out;
    for (size_t i = 0; i < r_.results.size(); ++i) {
      const ParityResult& p = r_.results[i];
      if (p.name == "floor") continue;
      std::vector<size_t> order(p.cases.size());
      for (size_t k = 0; k < order.size(); ++k) order[k] = k;
      std::sort(order.begin(), order.end(),
                [&](size_t a, size_t b) { return p.cases[a].ssim < p.cases[b].ssim; });
      out += fmt::format(
          "<h2>{}{}: pictures, worst first</h2><p>Left of the line {}, right of it "
          "{}.</p><div class=\"pairs\">\n",
          key(colors_[i]), html_escape(p.name), html_escape(r_.reference), html_escape(p.name));
      for (size_t k = 0; k < std::min(order.size(), kMost); ++k) {
        const auto& c = p.cases[order[k]];
        const Tensor& reference = r_.run.cases[order[k]].image;
        out += fmt::format(
            "<div class=\"pair\"><div class=\"stack\" style=\"--ratio:{}/{}\">{}{}</div><input "
            "type=\"range\" min=\"0\" max=\"100\" value=\"50\" aria-label=\"compare\" "
            "oninput=\"this.parentNode.style.setProperty('--x',this.value+'%')\"><small>{}, seed "
            "{}</small><small>SSIM {:.4f}, PSNR {:.1f} dB, latents {:.5f}</small>{}</div>\n",
            reference.shape()[2], reference.shape()[1], image(reference, r_.reference),
            image(c.image, p.name), html_escape(c.prompt), c.seed, c.ssim, std::min(c.psnr, 99.9),
            c.latent_cosine, reused(p, c));
      }
      out += "</div>\n";
    }
    return out;
  }

  static std::string reused(const ParityResult& result, const ParityResult::Case& c) {
    if (result.cache <= 0) return {};
    return fmt::format("<small>steps that reuse: {}</small>",
                       c.reused.empty() ? "none" : steps_text(c.reused));
  }

  std::string notes() const {
    return fmt::format(
        "<h2>How to read this</h2><p>Velocity: the model's prediction on the reference's own "
        "latents at "
        "every step, so that errors do not add up. Whole run: from the same noise to the end with "
        "the "
        "deterministic Euler sampler, which is also this model's real one. The grey line is the "
        "reference against itself with its input disturbed by {:g} of its size: what lies below it "
        "cannot be told from chaos. A step cache is measured like a precision, against the "
        "reference "
        "without one. LPIPS is not measured: its weights are not part of "
        "Halftone.</p>\n",
        r_.options.disturbance);
  }

  const ParityReport& r_;
  std::vector<const char*> colors_;
};

}  // namespace

std::string parity_page(const ParityReport& report) { return Page(report).write(); }

}  // namespace halftone
