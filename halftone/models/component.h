// A part of a model: its weights, and programs on them, one per shape.
#pragma once

#include <list>
#include <memory>
#include <string>

#include "halftone/models/model.h"
#include "halftone/runtime/program.h"

namespace halftone {

class Component {
 public:
  Component(Weights weights, const LoadOptions& options, std::shared_ptr<Arena> arena)
      : weights_(std::move(weights)),
        kernels_(*options.kernels),
        stream_(options.stream),
        arena_(std::move(arena)) {}

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
    programs_.push_front(
        {key, std::make_unique<Program>(build(), weights_, kernels_, stream_, arena_)});
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
  static bool is_mapped(const Weight& weight) {
    const auto* quantized = std::get_if<QuantizedTensor>(&weight);
    return quantized != nullptr ? quantized->codes.mapped() : std::get<Tensor>(weight).mapped();
  }

  Weights weights_;
  const Kernels& kernels_;
  Stream stream_;
  std::shared_ptr<Arena> arena_;
  std::list<Entry> programs_;  // most recent first
  int built_ = 0;
};

}  // namespace halftone
