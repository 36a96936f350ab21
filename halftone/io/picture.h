// An RGB picture in memory: what contact sheets are put together on.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "halftone/io/png.h"

namespace halftone {

using Color = std::array<uint8_t, 3>;

class Picture {
 public:
  Picture(int64_t width, int64_t height, Color background);
  // F32 [3, H, W], -1 to 1.
  static Picture from(const Tensor& image);

  int64_t width() const { return width_; }
  int64_t height() const { return height_; }
  const std::vector<uint8_t>& rgb() const { return rgb_; }  // [H, W, 3]

  // Parts outside are cut off.
  void draw(const Picture& other, int64_t x, int64_t y);
  void draw_text(std::string_view text, int64_t x, int64_t y, Color color);

  void write(const std::filesystem::path& path, const PngText& text) const;

 private:
  int64_t width_, height_;
  std::vector<uint8_t> rgb_;
};

inline constexpr int64_t kTextHeight = 16;
// In pixels; characters outside of ASCII are drawn as '?'.
int64_t text_width(std::string_view text);
// The text, cut and ended with "..." where it is wider than this.
std::string fit_text(std::string_view text, int64_t width);

}  // namespace halftone
