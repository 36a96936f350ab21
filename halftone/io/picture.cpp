#include "halftone/io/picture.h"

#include <algorithm>

namespace halftone {
namespace {

struct Glyph {
  int width;
  const char* coverage;  // hexadecimal digits, kTextHeight rows
};
constexpr Glyph kGlyphs[] = {
#include "halftone/io/glyphs.inc"
};

const Glyph& glyph_of(char c) {
  const bool known = c >= 0x20 && c <= 0x7E;
  return kGlyphs[(known ? c : '?') - 0x20];
}

int digit(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

// One '?' for each character that is not ASCII, however many bytes it has.
std::string drawable(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      out += c;
    } else if (byte >= 0xC0) {
      out += '?';
    }
  }
  return out;
}

}  // namespace

Picture::Picture(int64_t width, int64_t height, Color background)
    : width_(width), height_(height), rgb_(static_cast<size_t>(3 * width * height)) {
  for (size_t i = 0; i < rgb_.size(); ++i) rgb_[i] = background[i % 3];
}

Picture Picture::from(const Tensor& image) {
  Picture picture(image.shape()[2], image.shape()[1], {0, 0, 0});
  picture.rgb_ = to_rgb(image);
  return picture;
}

void Picture::draw(const Picture& other, int64_t x, int64_t y) {
  const int64_t left = std::max<int64_t>(0, -x), right = std::min(other.width_, width_ - x);
  const int64_t top = std::max<int64_t>(0, -y), bottom = std::min(other.height_, height_ - y);
  for (int64_t r = top; r < bottom && left < right; ++r) {
    std::copy_n(other.rgb_.begin() + (r * other.width_ + left) * 3, (right - left) * 3,
                rgb_.begin() + ((y + r) * width_ + x + left) * 3);
  }
}

void Picture::draw_text(std::string_view text, int64_t x, int64_t y, Color color) {
  for (const char c : drawable(text)) {
    const Glyph& glyph = glyph_of(c);
    for (int64_t r = 0; r < kTextHeight; ++r) {
      for (int64_t i = 0; i < glyph.width; ++i) {
        const int64_t column = x + i, row = y + r;
        if (column < 0 || column >= width_ || row < 0 || row >= height_) continue;
        const int cover = digit(glyph.coverage[r * glyph.width + i]);
        for (int64_t k = 0; k < 3; ++k) {
          uint8_t& pixel = rgb_[(row * width_ + column) * 3 + k];
          pixel = static_cast<uint8_t>((pixel * (15 - cover) + color[k] * cover) / 15);
        }
      }
    }
    x += glyph.width;
  }
}

void Picture::write(const std::filesystem::path& path, const PngText& text) const {
  write_png(path, {width_, height_, rgb_, text});
}

int64_t text_width(std::string_view text) {
  int64_t width = 0;
  for (const char c : drawable(text)) width += glyph_of(c).width;
  return width;
}

std::string fit_text(std::string_view text, int64_t width) {
  std::string out = drawable(text);
  if (text_width(out) <= width) return out;
  while (!out.empty() && text_width(out + "...") > width) out.pop_back();
  return out + "...";
}

}  // namespace halftone
