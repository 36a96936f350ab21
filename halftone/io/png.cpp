#include "halftone/io/png.h"

#include <png.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

#include "halftone/base/error.h"
#include "halftone/io/output.h"

namespace halftone {
namespace {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

// libpng reports through callbacks that must not return; an exception leaves through them.
template <ErrorCode kCode>
[[noreturn]] void on_error(png_structp png, png_const_charp message) {
  const auto* name = static_cast<const std::string*>(png_get_error_ptr(png));
  throw Error(kCode, *name, "PNG: {}", printable(message));
}
constexpr auto* on_write_error = on_error<ErrorCode::kIo>;
constexpr auto* on_read_error = on_error<ErrorCode::kInvalidInput>;
void on_warning(png_structp, png_const_charp) {}
void write_bytes(png_structp png, png_bytep bytes, size_t count) {
  static_cast<OutputFile*>(png_get_io_ptr(png))->write(std::as_bytes(std::span(bytes, count)));
}

}  // namespace

void put_on_white(std::vector<uint8_t>& pixels) {
  const size_t count = pixels.size() / 4;
  for (size_t i = 0; i < count; ++i) {
    const unsigned alpha = pixels[4 * i + 3];
    for (size_t c = 0; c < 3; ++c) {
      const unsigned mixed = pixels[4 * i + c] * alpha + 255 * (255 - alpha);
      pixels[3 * i + c] = static_cast<uint8_t>((mixed + 127) / 255);
    }
  }
  pixels.resize(count * 3);
}

void check_picture_size(int64_t width, int64_t height, const std::string& name) {
  constexpr int64_t kMostPixels = int64_t{1} << 28;
  if (width < 1 || height < 1 || width > kMostPixels / height) {
    throw Error(ErrorCode::kInvalidInput, name, "{}x{} pixels are more than can be read", width,
                height);
  }
}

std::vector<uint8_t> to_rgb(const Tensor& image) {
  const int64_t height = image.shape()[1], width = image.shape()[2];
  const auto values = image.as<float>();
  std::vector<uint8_t> rgb(static_cast<size_t>(3 * height * width));
  for (int64_t c = 0; c < 3; ++c) {
    for (int64_t i = 0; i < height * width; ++i) {
      const float unit =
          std::fmin(std::fmax(values[c * height * width + i] * 0.5f + 0.5f, 0.0f), 1.0f);
      rgb[i * 3 + c] = static_cast<uint8_t>(std::lround(unit * 255.0f));
    }
  }
  return rgb;
}

void check_png_name(const std::filesystem::path& path, const char* field) {
  // Not "-" or "cat-1.5", and not a pipe or a device, which may be called anything.
  std::string kind = path.extension().string();
  std::transform(kind.begin(), kind.end(), kind.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  const bool in_place =
      std::filesystem::exists(status) && !std::filesystem::is_regular_file(status);
  const bool named = kind.size() > 1 && std::isalpha(static_cast<unsigned char>(kind[1])) != 0;
  if (in_place || !named || kind == ".png") return;
  throw Error(ErrorCode::kUsage, field, "'{}': pictures are PNG, and are called .png",
              printable(path.string()));
}

namespace {

// Through libpng's callback for bytes.
void encode(const PngImage& image, std::string& name, void* io, png_rw_ptr write) {
  const auto width = static_cast<png_uint_32>(image.width);
  const auto height = static_cast<png_uint_32>(image.height);
  png_structp png =
      png_create_write_struct(PNG_LIBPNG_VER_STRING, &name, on_write_error, on_warning);
  png_infop info = png_create_info_struct(png);
  const auto destroy = [&](void*) { png_destroy_write_struct(&png, &info); };
  const std::unique_ptr<void, decltype(destroy)> guard(png, destroy);
  png_set_write_fn(png, io, write, [](png_structp) {});
  png_set_IHDR(png, info, width, height, 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  std::vector<png_text> chunks;
  for (const auto& [key, value] : image.text) {
    png_text chunk{};
    chunk.compression = PNG_ITXT_COMPRESSION_NONE;
    chunk.key = const_cast<char*>(key.c_str());
    chunk.text = const_cast<char*>(value.c_str());
    chunk.itxt_length = value.size();
    chunks.push_back(chunk);
  }
  png_set_text(png, info, chunks.data(), static_cast<int>(chunks.size()));
  png_write_info(png, info);
  for (png_uint_32 r = 0; r < height; ++r) {
    png_write_row(png, image.rgb.data() + size_t{r} * width * 3);
  }
  png_write_end(png, info);
}

PngImage png_image_of(const Tensor& image, const PngText& text) {
  HT_ASSERT(image.shape().rank() == 3 && image.shape()[0] == 3 && image.dtype() == DType::kF32);
  return {image.shape()[2], image.shape()[1], to_rgb(image), text};
}

}  // namespace

void write_png(const std::filesystem::path& path, const PngImage& image) {
  std::string name = path.string();
  OutputFile file(path);
  encode(image, name, &file, write_bytes);
  file.commit();
}
void write_png(const std::filesystem::path& path, const Tensor& image, const PngText& text) {
  write_png(path, png_image_of(image, text));
}

std::string encode_png(const PngImage& image) {
  std::string bytes, name = "PNG";
  encode(image, name, &bytes, [](png_structp png, png_bytep from, size_t count) {
    static_cast<std::string*>(png_get_io_ptr(png))
        ->append(reinterpret_cast<const char*>(from), count);
  });
  return bytes;
}
std::string encode_png(const Tensor& image, const PngText& text) {
  return encode_png(png_image_of(image, text));
}

namespace {

void read_text(png_structp png, png_infop info, PngImage& image) {
  png_textp chunks = nullptr;
  int count = 0;
  png_get_text(png, info, &chunks, &count);
  for (int i = 0; i < count; ++i) {
    const size_t length = chunks[i].itxt_length > 0 ? chunks[i].itxt_length : chunks[i].text_length;
    image.text.emplace_back(chunks[i].key, std::string(chunks[i].text, length));
  }
}

}  // namespace

PngImage read_png_header(const std::filesystem::path& path) {
  std::string name = path.string();
  const File file(std::fopen(name.c_str(), "rb"));
  if (!file) throw Error(ErrorCode::kNotFound, name, "{}", std::strerror(errno));
  constexpr std::string_view kEnd("\0\0\0\0IEND\xAE\x42\x60\x82", 12);
  std::string end(kEnd.size(), ' ');
  const bool whole = std::fseek(file.get(), -static_cast<long>(end.size()), SEEK_END) == 0 &&
                     std::fread(end.data(), 1, end.size(), file.get()) == end.size() && end == kEnd;
  if (!whole) throw Error(ErrorCode::kInvalidInput, name, "PNG: it does not end as it should");
  std::rewind(file.get());
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &name, on_read_error, on_warning);
  png_infop info = png_create_info_struct(png);
  const auto destroy = [&](void*) { png_destroy_read_struct(&png, &info, nullptr); };
  const std::unique_ptr<void, decltype(destroy)> guard(png, destroy);
  png_init_io(png, file.get());
  png_read_info(png, info);
  PngImage image;
  image.width = png_get_image_width(png, info);
  image.height = png_get_image_height(png, info);
  read_text(png, info, image);
  return image;
}

PngImage read_png(const std::filesystem::path& path, PngAlpha alpha) {
  std::string name = path.string();
  const File file(std::fopen(name.c_str(), "rb"));
  if (!file) throw Error(ErrorCode::kNotFound, name, "{}", std::strerror(errno));
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &name, on_read_error, on_warning);
  png_infop info = png_create_info_struct(png);
  const auto destroy = [&](void*) { png_destroy_read_struct(&png, &info, nullptr); };
  const std::unique_ptr<void, decltype(destroy)> guard(png, destroy);
  png_init_io(png, file.get());
  png_read_info(png, info);
  PngImage image;
  image.width = png_get_image_width(png, info);
  image.height = png_get_image_height(png, info);
  check_picture_size(image.width, image.height, name);
  png_set_expand(png);
  png_set_strip_16(png);
  png_set_gray_to_rgb(png);
  const bool on_white = alpha == PngAlpha::kOnWhite;
  if (on_white) {
    png_set_add_alpha(png, 0xFF, PNG_FILLER_AFTER);
  } else {
    png_set_strip_alpha(png);
  }
  const int passes = png_set_interlace_handling(png);
  png_read_update_info(png, info);
  const size_t channels = on_white ? 4 : 3;
  const size_t row = static_cast<size_t>(image.width) * channels;
  HT_ASSERT(png_get_rowbytes(png, info) == row);
  image.rgb.resize(row * static_cast<size_t>(image.height));
  for (int pass = 0; pass < passes; ++pass) {
    for (int64_t r = 0; r < image.height; ++r) {
      png_read_row(png, image.rgb.data() + static_cast<size_t>(r) * row, nullptr);
    }
  }
  if (on_white) put_on_white(image.rgb);
  png_read_end(png, info);
#if defined(PNG_eXIf_SUPPORTED)
  png_bytep exif = nullptr;
  png_uint_32 exif_bytes = 0;
  if (png_get_eXIf_1(png, info, &exif_bytes, &exif) != 0) {
    image.exif.assign(exif, exif + exif_bytes);
  }
#endif
  read_text(png, info, image);
  return image;
}

}  // namespace halftone
