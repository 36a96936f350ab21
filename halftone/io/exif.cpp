#include "halftone/io/exif.h"

#include <cstdint>
#include <cstring>
#include <optional>

namespace halftone {
namespace {

// Numbers of an Exif block, in the byte order that it names. Reading beyond it gives nothing.
class ExifBlock {
 public:
  ExifBlock(std::span<const std::byte> bytes, bool little) : bytes_(bytes), little_(little) {}

  std::optional<uint32_t> number(size_t at, size_t width) const {
    if (at > bytes_.size() || width > bytes_.size() - at) return {};
    uint32_t value = 0;
    for (size_t i = 0; i < width; ++i) {
      const size_t from = little_ ? at + width - 1 - i : at + i;
      value = value << 8 | std::to_integer<uint32_t>(bytes_[from]);
    }
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  bool little_;
};

constexpr char kExif[] = "Exif\0";  // and one more zero

bool begins_with_exif(std::span<const std::byte> data) {
  return data.size() > sizeof kExif && std::memcmp(data.data(), kExif, sizeof kExif) == 0;
}

int orientation_of(std::span<const std::byte> tiff) {
  constexpr uint32_t kOrientation = 0x0112;
  if (tiff.size() < 8) return 1;
  const ExifBlock block(tiff, tiff[0] == std::byte{'I'});
  const auto first = block.number(4, 4);
  const auto entries = first ? block.number(*first, 2) : std::nullopt;
  for (uint32_t i = 0; entries && i < *entries; ++i) {
    const size_t at = size_t{*first} + 2 + size_t{12} * i;
    const auto tag = block.number(at, 2), value = block.number(at + 8, 2);
    if (!tag || !value) break;
    if (*tag == kOrientation) return *value >= 1 && *value <= 8 ? static_cast<int>(*value) : 1;
  }
  return 1;
}

}  // namespace

int exif_block_orientation(std::span<const std::byte> block) {
  return orientation_of(begins_with_exif(block) ? block.subspan(sizeof kExif) : block);
}

int exif_orientation(std::span<const std::byte> jpeg) {
  constexpr uint32_t kApplication1 = 0xFFE1, kScan = 0xFFDA;
  const ExifBlock file(jpeg, false);
  for (size_t at = 2;;) {  // segments: a marker, a length that counts itself, and data
    const auto marker = file.number(at, 2), length = file.number(at + 2, 2);
    if (!marker || !length || *marker < 0xFF00 || *marker == kScan || *length < 2) return 1;
    if (jpeg.size() - at - 2 < *length) return 1;
    const auto data = jpeg.subspan(at + 4, *length - 2);
    if (*marker == kApplication1 && begins_with_exif(data)) return exif_block_orientation(data);
    at += 2 + *length;
  }
}

}  // namespace halftone
