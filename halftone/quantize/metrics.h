// How near two results are: pictures and latents.
#pragma once

#include <span>

#include "halftone/tensor/tensor.h"

namespace halftone {

// Structural similarity of two pictures F32 [3, H, W], -1 to 1, as viewers see them (cut to that
// range): Gaussian window of 11 x 11, sigma 1.5, mean over pixels and channels. 1 is equality.
double ssim(const Tensor& a, const Tensor& b);
// Peak signal to noise ratio in dB; infinite for equal pictures.
double psnr(const Tensor& a, const Tensor& b);

double cosine(std::span<const float> a, std::span<const float> b);
double relative_difference(std::span<const float> a, std::span<const float> reference);

}  // namespace halftone
