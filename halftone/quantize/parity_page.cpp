#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "halftone/base/text.h"
#include "halftone/io/png.h"
#include "halftone/quantize/parity_report.h"

namespace halftone {
namespace {

// One hue per precision; the floor is grey and dashed.
constexpr const char* kColors[] = {"#0b6e99", "#c4501b", "#5a8f29",
                                   "#8a3ffc", "#b8860b", "#00857c"};
constexpr const char* kFloorColor = "#888888";

constexpr const char* kStyle = R"(
:root{color-scheme:light;--ink:#222;--faint:#6b6b6b;--line:#ddd;--paper:#fbfbf9}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1080px;margin:2em auto;padding:0 1.2em}
h1{font-size:1.5em;margin:0 0 .2em}h2{font-size:1.1em;margin:2em 0 .4em}
p{max-width:75ch;color:var(--faint)}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.35em .5em;border-bottom:1px solid var(--line)}td{white-space:nowrap}
th:first-child,td:first-child{text-align:left}th{font-weight:600;color:var(--faint);vertical-align:bottom}
.key{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.45em;vertical-align:-1px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:1.2em}
figure{margin:0}figcaption{font-weight:600;margin-bottom:.2em}svg{width:100%;height:auto;background:#fff;border:1px solid var(--line)}
.pairs{display:grid;grid-template-columns:repeat(auto-fill,minmax(240px,1fr));gap:1.2em}
.pair{--x:50%}.stack{position:relative;aspect-ratio:var(--ratio)}
.stack img{position:absolute;inset:0;width:100%;height:100%;image-rendering:auto}
.stack img+img{clip-path:inset(0 0 0 var(--x))}
.stack::after{content:"";position:absolute;top:0;bottom:0;left:var(--x);width:2px;background:#fff;mix-blend-mode:difference}
.pair input{width:100%;margin:.3em 0}.pair small{color:var(--faint);display:block}
)";

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string base64(const std::vector<uint8_t>& bytes) {
  constexpr const char* kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const uint32_t a = bytes[i], b = i + 1 < bytes.size() ? bytes[i + 1] : 0,
                   c = i + 2 < bytes.size() ? bytes[i + 2] : 0;
    const uint32_t word = a << 16 | b << 8 | c;
    out += kLetters[word >> 18];
    out += kLetters[word >> 12 & 63];
    out += i + 1 < bytes.size() ? kLetters[word >> 6 & 63] : '=';
    out += i + 2 < bytes.size() ? kLetters[word & 63] : '=';
  }
  return out;
}

struct Series {
  std::string name, color;
  bool dashed = false;
  std::vector<double> y;
};

// Lines over the steps or layers, on a logarithmic scale.
class Chart {
 public:
  Chart(std::string title, std::string below, std::vector<std::string> ticks)
      : title_(std::move(title)), below_(std::move(below)), ticks_(std::move(ticks)) {}

  // What is not above zero has no place on the scale: there the line has a gap.
  void add(Series series) {
    for (const double v : series.y) {
      if (!is_shown(v)) continue;
      least_ = std::min(least_, v);
      most_ = std::max(most_, v);
    }
    series_.push_back(std::move(series));
  }

  std::string svg() const {
    const int low = static_cast<int>(std::floor(std::log10(least_)));
    const int high = std::max(low + 1, static_cast<int>(std::ceil(std::log10(most_))));
    const auto x = [&](size_t i) {
      const double count = std::max<double>(static_cast<double>(ticks_.size()) - 1, 1);
      return kLeft + (kWidth - kLeft - kRight) * static_cast<double>(i) / count;
    };
    const auto y = [&](double v) {
      return kTop + (kHeight - kTop - kBottom) * (high - std::log10(v)) / (high - low);
    };
    std::string out = fmt::format(
        "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {} {}\" role=\"img\" "
        "aria-label=\"{}\" font-family=\"system-ui,sans-serif\" font-size=\"11\" "
        "fill=\"#6b6b6b\">",
        escape(title_), kWidth, kHeight, escape(title_));
    for (int e = low; e <= high; ++e) {
      const double at = y(std::pow(10.0, e));
      out += fmt::format(
          "<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#e5e5e5\"/><text "
          "x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">1e{5}</text>",
          kLeft, kWidth - kRight, at, kLeft - 6, at + 4, e);
    }
    const size_t every = std::max<size_t>(1, (ticks_.size() + 9) / 10);
    for (size_t i = 0; i < ticks_.size(); i += every) {
      // Long names lean, so that they do not run into each other.
      const double below = kHeight - kBottom + 16;
      const std::string lean =
          ticks_[i].size() > 5 ? fmt::format("end\" transform=\"rotate(-25 {:.1f} {})", x(i), below)
                               : "middle";
      out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"{}\">{}</text>", x(i), below,
                         lean, escape(ticks_[i]));
    }
    out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                       (kWidth + kLeft - kRight) / 2, kHeight - 6, escape(below_));
    for (const Series& s : series_) {
      std::string path;
      for (size_t i = 0; i < s.y.size(); ++i) {
        if (!is_shown(s.y[i])) continue;
        const bool continues = i > 0 && is_shown(s.y[i - 1]);
        path += fmt::format("{}{:.1f} {:.1f}", continues ? 'L' : 'M', x(i), y(s.y[i]));
      }
      out += fmt::format(
          "<path fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{} "
          "d=\"{}\"><title>{}</title></path>",
          s.color, s.dashed ? " stroke-dasharray=\"5 4\"" : "", path, escape(s.name));
    }
    return out + "</svg></figure>\n";
  }

 private:
  static bool is_shown(double v) { return v > 1e-12; }

  static constexpr int kWidth = 520, kHeight = 270, kLeft = 74, kRight = 18, kTop = 14,
                       kBottom = 60;
  std::string title_, below_;
  std::vector<std::string> ticks_;
  std::vector<Series> series_;
  double least_ = 1, most_ = 1e-12;
};

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
        escape(name_of_model()), kStyle, escape(r_.reference));
    out += fmt::format(
        "<p>{} prompts, {} seed{} each, {} steps at {}x{}, guidance {}, on {}. Model {}. Halftone "
        "{}.</p>\n",
        r_.options.prompts.size(), r_.options.seeds, r_.options.seeds == 1 ? "" : "s",
        r_.options.steps, r_.options.width, r_.options.height, r_.options.guidance,
        escape(r_.device), escape(r_.hash), escape(r_.version));
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
          floor ? fmt::format("{} disturbed by {:g}", escape(r_.reference), r_.options.disturbance)
                : escape(fmt::format("{} ({})", p.name, p.how)),
          p.velocity_cosine_all.mean, p.velocity_cosine_all.tail, p.velocity_cosine_all.worst,
          p.velocity_error_all.mean, p.rollout_cosine.back().mean, p.ssim.mean,
          std::min(p.psnr.mean, 99.9), floor ? "" : human_bytes(p.weight_bytes),
          floor ? "" : human_seconds(p.seconds_per_step));
    }
    return out + "</table></div>\n";
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
      out += key(colors_[i]) + escape(r_.results[i].name) + " &nbsp; ";
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
    return fmt::format("<img alt=\"{}\" src=\"data:image/png;base64,{}\">", escape(title),
                       base64(encode_png(picture)));
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
          key(colors_[i]), escape(p.name), escape(r_.reference), escape(p.name));
      for (size_t k = 0; k < std::min(order.size(), kMost); ++k) {
        const auto& c = p.cases[order[k]];
        const Tensor& reference = r_.run.cases[order[k]].image;
        out += fmt::format(
            "<div class=\"pair\"><div class=\"stack\" style=\"--ratio:{}/{}\">{}{}</div><input "
            "type=\"range\" min=\"0\" max=\"100\" value=\"50\" aria-label=\"compare\" "
            "oninput=\"this.parentNode.style.setProperty('--x',this.value+'%')\"><small>{}, seed "
            "{}</small><small>SSIM {:.4f}, PSNR {:.1f} dB, latents {:.5f}</small></div>\n",
            reference.shape()[2], reference.shape()[1], image(reference, r_.reference),
            image(c.image, p.name), escape(c.prompt), c.seed, c.ssim, std::min(c.psnr, 99.9),
            c.latent_cosine);
      }
      out += "</div>\n";
    }
    return out;
  }

  std::string notes() const {
    return fmt::format(
        "<h2>How to read this</h2><p>Velocity: the model's prediction on the reference's own "
        "latents at "
        "every step, so that errors do not add up. Whole run: from the same noise to the end with "
        "the "
        "deterministic Euler sampler, which is also this model's real one. The grey line is the "
        "reference against itself with its input disturbed by {:g} of its size: what lies below it "
        "cannot be told from chaos. LPIPS is not measured: its weights are not part of "
        "Halftone.</p>\n",
        r_.options.disturbance);
  }

  const ParityReport& r_;
  std::vector<const char*> colors_;
};

}  // namespace

std::string parity_page(const ParityReport& report) { return Page(report).write(); }

}  // namespace halftone
