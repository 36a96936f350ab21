// Pictures [B, C, H, W], or [B, H, W, C] where channels come last: their sizes, and how far
// neighbours lie apart.
#pragma once

#include "halftone/base/host_device.h"
#include "halftone/kernels/op_args.h"

namespace halftone {

struct PictureLayout {
  int64_t batch = 0, channels = 0, height = 0, width = 0;
  int64_t item = 0, channel = 0, row = 0, column = 0;  // elements from one to the next

  PictureLayout() = default;
  PictureLayout(const Shape& shape, bool channels_last)
      : batch(shape[0]),
        channels(shape[channels_last ? 3 : 1]),
        height(shape[channels_last ? 1 : 2]),
        width(shape[channels_last ? 2 : 3]),
        item(channels * height * width),
        channel(channels_last ? 1 : height * width),
        row(channels_last ? width * channels : width),
        column(channels_last ? channels : 1) {}

  HT_HOST_DEVICE int64_t plane() const { return height * width; }
  HT_HOST_DEVICE int64_t at(int64_t b, int64_t c, int64_t r, int64_t col) const {
    return b * item + c * channel + r * row + col * column;
  }
};

inline Shape picture_shape(int64_t batch, int64_t channels, int64_t height, int64_t width,
                           bool channels_last) {
  if (channels_last) return {batch, height, width, channels};
  return {batch, channels, height, width};
}

// A convolution's weight [O, C, kh, kw], which may lie as [O, kh, kw, C].
struct KernelLayout {
  int64_t out = 0, in = 0, height = 0, width = 0;
  int64_t channel = 0, row = 0, column = 0;  // elements from one to the next

  KernelLayout() = default;
  KernelLayout(const Shape& shape, bool channels_last)
      : out(shape[0]),
        in(shape[1]),
        height(shape[2]),
        width(shape[3]),
        channel(channels_last ? 1 : height * width),
        row(channels_last ? width * in : width),
        column(channels_last ? in : 1) {}

  HT_HOST_DEVICE int64_t taps() const { return height * width; }
  HT_HOST_DEVICE int64_t at(int64_t o, int64_t c, int64_t u, int64_t v) const {
    return o * in * taps() + c * channel + u * row + v * column;
  }
};

}  // namespace halftone
