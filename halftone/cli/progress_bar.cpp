#include "halftone/cli/progress_bar.h"

#include <fmt/format.h>

#include <cstdio>

#include "halftone/base/error.h"
#include "halftone/base/text.h"

namespace halftone::cli {

ProgressBar::ProgressBar(std::string title, const Context& context, bool quiet, Unit unit)
    : title_(std::move(title)),
      context_(context),
      visible_(context.terminal && !quiet),
      logged_(!context.terminal && !quiet),
      unit_(unit) {
  if (logged_) last_ = start_;
  if (context.watch_interrupts) context.watch_interrupts(true);
}

ProgressBar::~ProgressBar() {
  clear();
  if (has_line_) print_note("{}: {} in all\n", title_, human_seconds(seconds()));
  if (context_.watch_interrupts) context_.watch_interrupts(false);
}

void ProgressBar::update(const Progress& progress) {
  if (context_.interrupted && context_.interrupted()) {
    throw Error(ErrorCode::kCancelled, "", "interrupted");
  }
  draw(progress);
}

void ProgressBar::draw(const Progress& progress) {
  const auto now = Clock::now();
  const auto pause = visible_ ? std::chrono::milliseconds(100) : std::chrono::seconds(30);
  if (!(visible_ || logged_) || now - last_ < pause) return;
  last_ = now;
  const double share =
      progress.total > 0 ? static_cast<double>(progress.done) / static_cast<double>(progress.total)
                         : 0.0;
  const double elapsed = seconds();
  const std::string left =
      share > 0.01 ? human_seconds(elapsed * (1 - share) / share) + " left" : "";
  if (logged_) {
    has_line_ = true;
    print_note("{} {:3.0f}% after {}  {}\n", title_, share * 100, human_seconds(elapsed), left);
    return;
  }
  drawn_ = true;
  constexpr int kWidth = 24;
  const int filled = static_cast<int>(share * kWidth);
  const double rate = static_cast<double>(progress.done) / (elapsed + 1e-9);
  const std::string speed = unit_ == Unit::kBytes ? human_bytes(static_cast<int64_t>(rate)) + "/s"
                                                  : fmt::format("{}/{}  {} steps/s", progress.done,
                                                                progress.total, three_digits(rate));
  print_note("\r\x1b[K{} [{}{}] {:3.0f}%  {}  {}  {}", title_,
             std::string(static_cast<size_t>(filled), '#'),
             std::string(static_cast<size_t>(kWidth - filled), '.'), share * 100, speed, left,
             printable(progress.item, 64));
  std::fflush(stderr);
}

void ProgressBar::clear() {
  if (drawn_) print_note("\r\x1b[K");
  drawn_ = false;
}

}  // namespace halftone::cli
