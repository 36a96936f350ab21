// What GroupNorm and its gradient share, whether channels come first or last.
#pragma once

#include "halftone/kernels/cuda/row_norms.cuh"
#include "halftone/kernels/layouts.h"

namespace halftone::cuda {

struct Groups {
  int64_t count, size;      // B * G groups of so many elements
  int64_t channels, plane;  // C, and H * W
  int64_t groups;           // G
  int64_t parts;            // blocks that share a group

  Groups(const PictureLayout& x, int groups_in, int64_t parts_in)
      : count(x.batch * groups_in),
        size(x.channels / groups_in * x.plane()),
        channels(x.channels),
        plane(x.plane()),
        groups(groups_in),
        parts(parts_in) {}
  HT_HOST_DEVICE int64_t numel() const { return count * size; }
  HT_HOST_DEVICE int64_t per_group() const { return channels / groups; }
};

inline int64_t moments_bytes(const Groups& g) {
  return aligned_bytes(g.count * g.parts * 16) + aligned_bytes(g.count * 8);
}

// A warp per group.
static __global__ void group_moments_kernel(const double2* sums, Groups g, float eps,
                                            Moments* moments) {
  const int64_t group = thread_index() / 32;
  if (group >= g.count) return;
  double sum = 0, squares = 0;
  for (int64_t part = threadIdx.x % 32; part < g.parts; part += 32) {
    sum += sums[group * g.parts + part].x;
    squares += sums[group * g.parts + part].y;
  }
  const auto n = static_cast<double>(g.size);
  const double mean = warp_sum(sum) / n;
  const double variance = max(warp_sum(squares) / n - mean * mean, 0.0);
  if (threadIdx.x % 32 == 0)
    moments[group] = {static_cast<float>(mean), static_cast<float>(1 / sqrt(variance + eps))};
}

struct GroupNormGrad {
  Input dy, x, weight;
  Output dx, dweight, dbias;
  const Moments* moments;
  float2* planes;       // [B, C]: sums of dy, and of dy z with z the normalized x
  float2* group_terms;  // [B, G]: the same of dy w
};

// Threads below C do a channel's dweight and dbias, the next B * G a group's terms.
static __global__ void group_terms_kernel(GroupNormGrad p, Groups g) {
  const int64_t index = thread_index();
  float sum = 0, dot = 0;
  if (index < g.channels) {
    const int64_t batch = g.count / g.groups;
    for (int64_t b = 0; b < batch; ++b) {
      const float2 plane = p.planes[b * g.channels + index];
      sum += plane.x;
      dot += plane.y;
    }
    if (p.dweight.data != nullptr) store_value(p.dweight.data, p.dweight.dtype, index, dot);
    if (p.dbias.data != nullptr) store_value(p.dbias.data, p.dbias.dtype, index, sum);
  } else if (index - g.channels < g.count) {
    const int64_t group = index - g.channels, per_group = g.channels / g.groups;
    for (int64_t i = group * per_group; i < (group + 1) * per_group; ++i) {
      const float w = load_value(p.weight.data, p.weight.dtype, i % g.channels);
      sum = fmaf(w, p.planes[i].x, sum);
      dot = fmaf(w, p.planes[i].y, dot);
    }
    p.group_terms[group] = make_float2(sum, dot);
  }
}

// Of channels last (group_norm_last.cu).
void group_norm_last(const NormArgs& args, Stream stream);
int64_t group_norm_last_workspace(const NormArgs& args);
void group_norm_last_grad(const NormGradArgs& args, Stream stream);
int64_t group_norm_last_grad_workspace(const NormGradArgs& args);

}  // namespace halftone::cuda
