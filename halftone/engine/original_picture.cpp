#include "halftone/engine/original_picture.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <utility>

#include "halftone/base/error.h"

namespace halftone {
namespace {

constexpr int64_t kMostPixels = 65536;

// Two whole numbers with something between them.
std::optional<std::pair<int64_t, int64_t>> two_numbers(const std::string& text, char between) {
  const char* const end = text.data() + text.size();
  uint32_t first = 0, second = 0;
  const auto [stop, wrong] = std::from_chars(text.data(), end, first);
  if (wrong != std::errc() || stop == end || *stop != between) return std::nullopt;
  const auto [last, also_wrong] = std::from_chars(stop + 1, end, second);
  if (also_wrong != std::errc() || last != end || first > kMostPixels || second > kMostPixels) {
    return std::nullopt;
  }
  return std::pair<int64_t, int64_t>(first, second);
}

}  // namespace

void read_original_size(const std::string& text, const char* field, OriginalPicture& original) {
  if (text.empty()) return;
  const auto size = two_numbers(text, 'x');
  if (!size || size->first == 0 || size->second == 0) {
    throw Error(ErrorCode::kUsage, field, "'{}' is not WIDTHxHEIGHT in pixels, up to {}",
                printable(text), kMostPixels);
  }
  std::tie(original.width, original.height) = *size;
}

void read_crop(const std::string& text, const char* field, OriginalPicture& original) {
  if (text.empty()) return;
  const auto place = two_numbers(text, ',');
  if (!place) {
    throw Error(ErrorCode::kUsage, field, "'{}' is not LEFT,TOP in pixels, up to {}",
                printable(text), kMostPixels);
  }
  std::tie(original.left, original.top) = *place;
}

std::string original_size_text(const PictureSizes& told) {
  return fmt::format("{}x{}", told.original_width, told.original_height);
}

std::string crop_text(const PictureSizes& told) {
  return fmt::format("{},{}", told.left, told.top);
}

}  // namespace halftone
