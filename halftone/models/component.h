// A part of a model: its weights, and programs on them, one per shape.
#pragma once

#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "halftone/models/model.h"
#include "halftone/passes/compile.h"
#include "halftone/runtime/program.h"

namespace halftone {

class Component {
 public:
  // `graphs` show which weights are used together: on a device some are stacked.
  Component(Weights weights, std::span<const std::shared_ptr<Graph>> graphs, CompileOptions compile,
            const LoadOptions& options, std::shared_ptr<Arena> arena)
      : weights_(std::move(weights)),
        compile_(std::move(compile)),
        options_{options.kernels, options.stream, options.compile, options.cancelled},
        arena_(std::move(arena)) {
    for (const auto& [name, weight] : weights_) check_intact(weight);
    DeviceContext* device = options.stream.device;
    if (device == nullptr) return;
    CompileOptions how = compile_;
    how.can_stack = [&](const std::string& a, const std::string& b) {
      return are_stored_alike(weights_.at(a), weights_.at(b));
    };
    for (const auto& graph : graphs) {
      for (WeightStack& stack : weight_stacks(*this->compile(*graph, how).graph)) {
        for (const std::string& name : stack) stack_of_[name] = stacks_.size();
        stacks_.push_back(std::move(stack));
      }
    }
    const Weights host = std::move(weights_);
    weights_ = to_device(host, stacks_, *device);
    for (const auto& [name, weight] : host) check_intact(weight);  // copied, or lost meanwhile
  }

  // As this component's programs run a graph.
  std::shared_ptr<Graph> compiled(const Graph& graph) const {
    CompileOptions how = compile_;
    how.can_stack = [&](const std::string& a, const std::string& b) {
      const auto x = stack_of_.find(a), y = stack_of_.find(b);
      return x != stack_of_.end() && y != stack_of_.end() && x->second == y->second;
    };
    return compile(graph, how).graph;
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
  static bool is_mapped(const Weight& weight) {
    const auto* quantized = std::get_if<QuantizedTensor>(&weight);
    return quantized != nullptr ? quantized->codes.mapped() : std::get<Tensor>(weight).mapped();
  }

  CompiledGraph compile(const Graph& graph, const CompileOptions& how) const {
    return halftone::compile(graph, how, *options_.kernels, options_.stream);
  }

  Weights weights_;
  CompileOptions compile_;
  ProgramOptions options_;
  std::shared_ptr<Arena> arena_;
  std::vector<WeightStack> stacks_;         // weights that lie together on the device
  std::map<std::string, size_t> stack_of_;  // by name
  std::list<Entry> programs_;               // most recent first
  int built_ = 0;
};

}  // namespace halftone
