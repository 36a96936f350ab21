#include "halftone/io/read_picture.h"

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstring>
#include <fstream>

#include "halftone/base/error.h"
#include "halftone/io/exif.h"
#include "halftone/io/png.h"
#include "halftone/tensor/storage.h"
#if defined(HALFTONE_JPEG)
#include <jpeglib.h>

#include <cstdio>  // before jpeglib.h, which does not include what it needs
#endif
#if defined(HALFTONE_WEBP)
#include <webp/decode.h>
#endif

namespace halftone {
namespace {

using Bytes = std::span<const std::byte>;

bool starts_with(Bytes bytes, size_t offset, std::string_view text) {
  return bytes.size() >= offset + text.size() &&
         std::memcmp(bytes.data() + offset, text.data(), text.size()) == 0;
}

// Pixels of a picture that is stored on its side, upside down or mirrored; see exif_orientation.
RgbImage turned(RgbImage image, int orientation) {
  if (orientation <= 1 || orientation > 8) return image;
  const bool transposed = orientation >= 5;
  RgbImage out{transposed ? image.height : image.width, transposed ? image.width : image.height,
               std::vector<uint8_t>(image.rgb.size())};
  const bool from_right =
      orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool from_below =
      orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  for (int64_t y = 0; y < out.height; ++y) {
    for (int64_t x = 0; x < out.width; ++x) {
      const int64_t column = transposed ? y : x, row = transposed ? x : y;
      const int64_t u = from_right ? image.width - 1 - column : column;
      const int64_t v = from_below ? image.height - 1 - row : row;
      std::copy_n(image.rgb.begin() + 3 * (v * image.width + u), 3,
                  out.rgb.begin() + 3 * (y * out.width + x));
    }
  }
  return out;
}

#if defined(HALFTONE_JPEG)
// libjpeg reports errors through a function that must not return. It is C, so it is left by a jump
// to a frame that holds nothing to destroy.
struct JpegReader {
  jpeg_error_mgr errors{};
  jpeg_decompress_struct jpeg{};
  std::jmp_buf failed{};
  std::array<char, JMSG_LENGTH_MAX> message{};

  JpegReader() {
    jpeg.err = jpeg_std_error(&errors);
    errors.error_exit = [](j_common_ptr common) {
      auto* self = static_cast<JpegReader*>(common->client_data);
      (*common->err->format_message)(common, self->message.data());
      std::longjmp(self->failed, 1);
    };
    errors.output_message = [](j_common_ptr) {};
    jpeg.client_data = this;
  }
  ~JpegReader() { jpeg_destroy_decompress(&jpeg); }

  bool start(Bytes bytes) {
    if (setjmp(failed) != 0) return false;
    jpeg_create_decompress(&jpeg);
    jpeg_mem_src(&jpeg, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    jpeg_read_header(&jpeg, TRUE);
    jpeg.out_color_space = JCS_RGB;
    return true;
  }
  bool read(uint8_t* rgb) {
    if (setjmp(failed) != 0) return false;
    jpeg_start_decompress(&jpeg);
    while (jpeg.output_scanline < jpeg.output_height) {
      JSAMPROW row = rgb + size_t{jpeg.output_scanline} * jpeg.output_width * 3;
      jpeg_read_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_decompress(&jpeg);
    return true;
  }
};

RgbImage read_jpeg(Bytes bytes, const std::string& name) {
  JpegReader reader;
  const auto fail = [&] {
    throw Error(ErrorCode::kInvalidInput, name, "JPEG: {}", printable(reader.message.data()));
  };
  if (!reader.start(bytes)) fail();
  RgbImage image{reader.jpeg.image_width, reader.jpeg.image_height, {}};
  check_picture_size(image.width, image.height, name);
  if (reader.jpeg.jpeg_color_space == JCS_CMYK || reader.jpeg.jpeg_color_space == JCS_YCCK) {
    throw Error(ErrorCode::kUnsupported, name, "JPEG: is made for print (CMYK)");
  }
  image.rgb.resize(static_cast<size_t>(image.width * image.height * 3));
  if (!reader.read(image.rgb.data())) fail();
  // What is missing of a file that was cut off is only warned of, and grey.
  if (reader.errors.num_warnings > 0) {
    throw Error(ErrorCode::kInvalidInput, name, "JPEG: is damaged");
  }
  return turned(std::move(image), exif_orientation(bytes));
}
#else
RgbImage read_jpeg(Bytes, const std::string& name) {
  throw Error(ErrorCode::kUnsupported, name, "is a JPEG, which this build cannot read");
}
#endif

#if defined(HALFTONE_WEBP)
// Chunks after "RIFF size WEBP": four letters, a size, and as many bytes, filled up to an even
// number.
int webp_orientation(Bytes bytes) {
  for (size_t at = 12; at + 8 <= bytes.size();) {
    uint32_t size = 0;
    std::memcpy(&size, bytes.data() + at + 4, sizeof size);  // little-endian, as this machine is
    if (size > bytes.size() - at - 8) break;
    if (starts_with(bytes, at, "EXIF")) return exif_block_orientation(bytes.subspan(at + 8, size));
    at += 8 + size_t{size} + size % 2;
  }
  return 1;
}

RgbImage read_webp(Bytes bytes, const std::string& name) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(data, bytes.size(), &features) != VP8_STATUS_OK) {
    throw Error(ErrorCode::kInvalidInput, name, "WebP: is damaged");
  }
  if (features.has_animation != 0) {
    throw Error(ErrorCode::kUnsupported, name, "WebP: is a moving picture");
  }
  const int width = features.width, height = features.height;
  check_picture_size(width, height, name);
  RgbImage image{width, height, {}};
  image.rgb.resize(static_cast<size_t>(image.width * image.height * 4));
  if (WebPDecodeRGBAInto(data, bytes.size(), image.rgb.data(), image.rgb.size(), 4 * width) ==
      nullptr) {
    throw Error(ErrorCode::kInvalidInput, name, "WebP: is damaged");
  }
  put_on_white(image.rgb);
  return turned(std::move(image), webp_orientation(bytes));
}
#else
RgbImage read_webp(Bytes, const std::string& name) {
  throw Error(ErrorCode::kUnsupported, name, "is a WebP, which this build cannot read");
}
#endif

}  // namespace

RgbImage read_picture(const std::filesystem::path& path) {
  const std::string name = path.string();
  const auto file = Storage::map_file(path);
  const Bytes bytes = file->bytes();
  if (starts_with(bytes, 0, "\x89PNG")) {
    PngImage png = read_png(path, PngAlpha::kOnWhite);
    const int orientation = exif_block_orientation(std::as_bytes(std::span(png.exif)));
    return turned({png.width, png.height, std::move(png.rgb)}, orientation);
  }
  if (starts_with(bytes, 0, "\xFF\xD8")) return read_jpeg(bytes, name);
  if (starts_with(bytes, 0, "RIFF") && starts_with(bytes, 8, "WEBP")) return read_webp(bytes, name);
  throw Error(ErrorCode::kInvalidInput, name, "is neither a PNG, a JPEG nor a WebP");
}

bool is_picture_name(const std::filesystem::path& path) {
  std::string extension = path.extension().string();
  std::ranges::transform(extension, extension.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  });
  return extension == ".png" || extension == ".jpg" || extension == ".jpeg" || extension == ".webp";
}

}  // namespace halftone
