// Parts of pages that reports are: one file each, with everything in it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace halftone {

extern const char* const kPageStyle;

std::string html_escape(std::string_view text);
std::string html_image(std::string_view png, std::string_view title);

struct Series {
  std::string name, color;
  bool dashed = false;
  std::vector<double> y;
};

// Lines over the steps or layers.
class Chart {
 public:
  enum class Scale : uint8_t { kLogarithmic, kLinear };
  Chart(std::string title, std::string below, std::vector<std::string> ticks,
        Scale scale = Scale::kLogarithmic)
      : title_(std::move(title)),
        below_(std::move(below)),
        ticks_(std::move(ticks)),
        scale_(scale) {}

  // What is no number has no place on the scale, nor, on a logarithmic one, what is not above zero:
  // there the line has a gap.
  void add(Series series);
  std::string svg() const;

 private:
  bool is_shown(double v) const;
  // Where the scale begins and ends, in powers of ten or as it is, and its lines between.
  struct Axis {
    double low = 0, high = 1;
    std::vector<std::pair<double, std::string>> lines;
  };
  Axis axis() const;

  std::string title_, below_;
  std::vector<std::string> ticks_;
  Scale scale_;
  std::vector<Series> series_;
};

}  // namespace halftone
