// UniPC (Zhao et al. 2023) on the clean picture: each step first corrects the latents it was given,
// by the prediction that was made of them, and predicts on from there.
#include <algorithm>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/diffusion/samplers.h"

namespace halftone {
namespace {

constexpr size_t kMostOrder = 3;

// Solves rows of powers of `nodes`: sum over k of nodes[k]^i x[k] = right[i]. Nodes differ.
std::vector<double> solve_vandermonde(const std::vector<double>& nodes, std::vector<double> right) {
  const size_t n = nodes.size();
  double m[kMostOrder][kMostOrder];
  for (size_t i = 0; i < n; ++i) {
    for (size_t k = 0; k < n; ++k) m[i][k] = std::pow(nodes[k], static_cast<double>(i));
  }
  for (size_t i = 0; i < n; ++i) {  // Gauss, with pivots
    size_t pivot = i;
    for (size_t r = i + 1; r < n; ++r) {
      if (std::abs(m[r][i]) > std::abs(m[pivot][i])) pivot = r;
    }
    std::swap(m[i], m[pivot]);
    std::swap(right[i], right[pivot]);
    for (size_t r = i + 1; r < n; ++r) {
      const double factor = m[r][i] / m[i][i];
      for (size_t k = i; k < n; ++k) m[r][k] -= factor * m[i][k];
      right[r] -= factor * right[i];
    }
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t k = i + 1; k < n; ++k) right[i] -= m[i][k] * right[k];
    right[i] /= m[i][i];
  }
  return right;
}

// Latents at level `to` from those at level `from` = to - 1.
struct Update {
  size_t to;
  int order;
  Factors latents;                // at `from`
  std::vector<Factors> pictures;  // clean, at `from` and before, newest first
  const Factors* target;          // clean, at `to`: of a correction
};

Factors unipc_update(const SchedulerConfig& c, const SolverLevels& levels, const Update& u) {
  const size_t from = u.to - 1;
  if (levels.sigmas[u.to] == 0) return u.pictures[0];
  const auto lambda = [&](size_t k) { return levels.at(k).lambda(); };
  const NoiseLevel start = levels.at(from), end = levels.at(u.to);
  const double h = lambda(u.to) - lambda(from);
  if (h == 0) return u.latents;
  Factors next = u.latents;
  next.add(end.sigma / start.sigma - 1, u.latents).add(-end.alpha * std::expm1(-h), u.pictures[0]);

  // Where other pictures lie, in units of this step, and how they differ from the first.
  std::vector<double> nodes;
  std::vector<const Factors*> others;
  for (int k = 1; k < u.order; ++k) {
    nodes.push_back((lambda(from - static_cast<size_t>(k)) - lambda(from)) / h);
    others.push_back(&u.pictures[static_cast<size_t>(k)]);
  }
  if (u.target) {
    nodes.push_back(1);
    others.push_back(u.target);
  }
  if (nodes.empty()) return next;
  const double scale = c.bh1 ? -h : std::expm1(-h);
  std::vector<double> weights = {0.5};  // of two points, by definition
  if (nodes.size() > 1) {
    std::vector<double> right;
    double factorial = 1;
    for (size_t i = 1; i <= nodes.size(); ++i) {
      factorial *= static_cast<double>(i);
      right.push_back(-h * phi(static_cast<int>(i) + 1, -h) * factorial / scale);
    }
    weights = solve_vandermonde(nodes, right);
  }
  for (size_t k = 0; k < nodes.size(); ++k) {
    const double weight = -end.alpha * scale * weights[k] / nodes[k];
    next.add(weight, *others[k]).add(-weight, u.pictures[0]);
  }
  return next;
}

}  // namespace

Schedule unipc_schedule(const SchedulerConfig& c, int steps, int64_t image_tokens) {
  const SolverLevels levels = solver_levels(c, steps, image_tokens);
  const auto most = static_cast<size_t>(c.solver_order);
  // The latents that the last prediction started from, and clean pictures, newest first.
  Schedule schedule;
  schedule.memories = 1 + most;
  const auto memory = [&](size_t k) { return Factors::of(schedule.memories, kFirstMemory + k); };
  std::vector<Factors> before;
  for (size_t k = 0; k < most; ++k) before.push_back(memory(1 + k));

  int last_order = 0;
  for (size_t i = 0; i < static_cast<size_t>(steps); ++i) {
    SamplerStep step = solver_step(c, levels, i, schedule.memories);
    const Factors picture = clean_picture(c.prediction, levels.at(i), schedule.memories);
    Factors latents = Factors::of(schedule.memories, kLatents);
    if (i > 0) latents = unipc_update(c, levels, {i, last_order, memory(0), before, &picture});

    std::vector<Factors> pictures = {picture};
    pictures.insert(pictures.end(), before.begin(), before.end() - 1);
    const int left = steps - static_cast<int>(i);
    last_order =
        levels.distinct(i, c.lower_order_final ? std::min(c.solver_order, left) : c.solver_order);
    step.latents =
        unipc_update(c, levels, {i + 1, last_order, latents, pictures, nullptr}).rounded();
    step.memory.push_back(latents.rounded());
    for (const Factors& kept : pictures) step.memory.push_back(kept.rounded());
    schedule.steps.push_back(std::move(step));
  }
  return schedule;
}

}  // namespace halftone
