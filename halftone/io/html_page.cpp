#include "halftone/io/html_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "halftone/base/text.h"

namespace halftone {
namespace {

constexpr int kWidth = 520, kHeight = 270, kLeft = 74, kRight = 18, kTop = 14, kBottom = 60;

}  // namespace

const char* const kPageStyle = R"(
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

std::string html_escape(std::string_view text) {
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

std::string html_image(std::string_view png, std::string_view title) {
  return fmt::format("<img alt=\"{}\" src=\"data:image/png;base64,{}\">", html_escape(title),
                     base64(png));
}

bool Chart::is_shown(double v) const {
  return std::isfinite(v) && (scale_ == Scale::kLinear || v > 1e-12);
}

void Chart::add(Series series) { series_.push_back(std::move(series)); }

Chart::Axis Chart::axis() const {
  double least = INFINITY, most = -INFINITY;
  for (const Series& series : series_) {
    for (const double v : series.y) {
      if (!is_shown(v)) continue;
      least = std::min(least, v);
      most = std::max(most, v);
    }
  }
  Axis axis;
  if (scale_ == Scale::kLogarithmic) {
    least = std::min(least, 1.0);
    most = std::max(most, 1e-12);
    axis.low = std::floor(std::log10(least));
    axis.high = std::max(axis.low + 1, std::ceil(std::log10(most)));
    for (double e = axis.low; e <= axis.high; ++e) {
      axis.lines.emplace_back(std::pow(10.0, e), fmt::format("1e{:.0f}", e));
    }
    return axis;
  }
  if (least > most) least = 0, most = 1;
  least = std::min(0.0, least);
  // A round number of about a fifth of it.
  const double rough = std::max(most - least, 1e-12) / 5;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double step = power * (rough / power < 1.5 ? 1 : rough / power < 3.5 ? 2 : 5);
  axis.low = std::floor(least / step) * step;
  axis.high = std::max(axis.low + step, std::ceil(most / step) * step);
  for (double v = axis.low; v <= axis.high + step / 2; v += step) {
    axis.lines.emplace_back(v, fmt::format("{:g}", std::abs(v) < step / 2 ? 0 : v));
  }
  return axis;
}

std::string Chart::svg() const {
  const Axis axis = this->axis();
  const auto x = [&](size_t i) {
    const double count = std::max<double>(static_cast<double>(ticks_.size()) - 1, 1);
    return kLeft + (kWidth - kLeft - kRight) * static_cast<double>(i) / count;
  };
  const auto y = [&](double v) {
    const double at = scale_ == Scale::kLogarithmic ? std::log10(v) : v;
    return kTop + (kHeight - kTop - kBottom) * (axis.high - at) / (axis.high - axis.low);
  };
  std::string out = fmt::format(
      "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {} {}\" role=\"img\" "
      "aria-label=\"{}\" font-family=\"system-ui,sans-serif\" font-size=\"11\" "
      "fill=\"#6b6b6b\">",
      html_escape(title_), kWidth, kHeight, html_escape(title_));
  for (const auto& [value, name] : axis.lines) {
    const double at = y(value);
    out += fmt::format(
        "<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#e5e5e5\"/><text "
        "x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>",
        kLeft, kWidth - kRight, at, kLeft - 6, at + 4, name);
  }
  const size_t every = std::max<size_t>(1, (ticks_.size() + 9) / 10);
  for (size_t i = 0; i < ticks_.size(); i += every) {
    // Long names lean, so that they do not run into each other.
    const double below = kHeight - kBottom + 16;
    const std::string lean =
        ticks_[i].size() > 5 ? fmt::format("end\" transform=\"rotate(-25 {:.1f} {})", x(i), below)
                             : "middle";
    out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"{}\">{}</text>", x(i), below,
                       lean, html_escape(ticks_[i]));
  }
  out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                     (kWidth + kLeft - kRight) / 2, kHeight - 6, html_escape(below_));
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
        s.color, s.dashed ? " stroke-dasharray=\"5 4\"" : "", path, html_escape(s.name));
  }
  return out + "</svg></figure>\n";
}

}  // namespace halftone
