// A part of a model: its weights, and programs on them, one per shape.
#pragma once

#include <algorithm>
#include <list>
#include <memory>
#include <string>

#include "halftone/models/model.h"
#include "halftone/passes/fuse.h"
#include "halftone/passes/gelu.h"
#include "halftone/passes/merge.h"
#include "halftone/passes/swizzle.h"
#include "halftone/runtime/program.h"

namespace halftone {

class Component {
 public:
  // `graphs` show which weights are used together: on a device some are stacked.
  Component(Weights weights, std::span<const std::shared_ptr<Graph>> graphs,
            const LoadOptions& options, std::shared_ptr<Arena> arena)
      : weights_(std::move(weights)),
        options_{options.kernels, options.stream, options.compile, options.cancelled},
        arena_(std::move(arena)) {
    for (const auto& [name, weight] : weights_) check_intact(weight);
    DeviceContext* device = options.stream.device;
    if (device == nullptr) return;
    if (options.compile) {
      const auto can_stack = [&](const std::string& a, const std::string& b) {
        return are_stored_alike(weights_.at(a), weights_.at(b));
      };
      for (const auto& graph : graphs) {
        for (const std::string& name : merged_weights(*merge_linears(*graph, can_stack))) {
          merged_.push_back("|" + name + "|");
        }
      }
    }
    std::vector<std::string> names;
    for (const std::string& name : merged_) names.push_back(name.substr(1, name.size() - 2));
    const Weights host = std::move(weights_);
    weights_ = to_device(host, names, *device);
    for (const auto& [name, weight] : host) check_intact(weight);  // copied, or lost meanwhile
  }

  // As this component's programs run a graph.
  std::shared_ptr<Graph> compiled(const std::shared_ptr<Graph>& graph) const {
    if (!options_.record) return graph;
    if (options_.stream.device == nullptr) return fuse(*graph);
    const auto stacked = [&](const std::string& a, const std::string& b) {
      return std::any_of(merged_.begin(), merged_.end(), [&](const std::string& names) {
        return names.find("|" + a + "|") != std::string::npos &&
               names.find("|" + b + "|") != std::string::npos;
      });
    };
    auto compiled = fold_gelu(*merge_linears(*graph, stacked));
    if (options_.stream.device->multiplies_blocks()) compiled = swizzle_block_scales(*compiled);
    return fuse(*compiled);
  }

  const Weights& weights() const { return weights_; }

  // The program of this key, built when it was not among the last few.
  template <class Build>
  Program& program(const std::string& key, const Build& build) {
    for (auto it = programs_.begin(); it != programs_.end(); ++it) {
      if (it->key != key) continue;
      programs_.splice(programs_.begin(), programs_, it);
      return *programs_.front().program;
    }
    if (programs_.size() == kMostPrograms) programs_.pop_back();
    programs_.push_front({key, std::make_unique<Program>(build(), weights_, options_, arena_)});
    ++built_;
    return *programs_.front().program;
  }
  int built() const { return built_; }

  void add_weights(ModelMemory& memory) const {
    for (const auto& [name, weight] : weights_) {
      (is_mapped(weight) ? memory.file_weights : memory.owned_weights) += byte_size_of(weight);
    }
  }

 private:
  static constexpr size_t kMostPrograms = 8;
  struct Entry {
    std::string key;
    std::unique_ptr<Program> program;
  };
  static bool are_stored_alike(const Weight& a, const Weight& b) {
    const auto *x = std::get_if<QuantizedTensor>(&a), *y = std::get_if<QuantizedTensor>(&b);
    if ((x == nullptr) != (y == nullptr)) return false;
    if (x != nullptr) return x->format == y->format;
    return std::get<Tensor>(a).dtype() == std::get<Tensor>(b).dtype();
  }
  static bool is_mapped(const Weight& weight) {
    const auto* quantized = std::get_if<QuantizedTensor>(&weight);
    return quantized != nullptr ? quantized->codes.mapped() : std::get<Tensor>(weight).mapped();
  }

  Weights weights_;
  ProgramOptions options_;
  std::shared_ptr<Arena> arena_;
  std::vector<std::string> merged_;  // "|a|b|": weights that were stacked
  std::list<Entry> programs_;        // most recent first
  int built_ = 0;
};

}  // namespace halftone
