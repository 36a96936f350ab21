// The programs of a run, made for the shapes that come and kept while they are used. They share
// what is trained, the base's weights and their memory.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "halftone/engine/model.h"
#include "halftone/engine/pipeline.h"
#include "halftone/training/parameters.h"
#include "halftone/training/train_rules.h"

namespace halftone {

enum class TrainPass : uint8_t {
  kGradients,  // the loss, and gradients of what is trained
  kHeldOut,    // the loss alone, as the result will be used: nothing is dropped
  kCompared,   // gradients towards the pictures, whoever teaches, with nothing dropped
  kReference,  // these as they are where base and gradients are in high precision
};

class TrainPrograms {
 public:
  TrainPrograms(std::shared_ptr<const Model> model, const TrainRules& rules, LoraSites sites,
                const Parameters& parameters, std::function<bool()> cancelled);

  struct Entry {
    TrainPass pass = TrainPass::kGradients;
    DenoiserShape shape;
    std::unique_ptr<Program> program;
    std::unique_ptr<Program> teacher;  // where there is one
  };
  // The least recently used of many is given up.
  Entry& get(TrainPass pass, const Shape& latents, std::span<const int64_t> texts);

  // Adds what weights of all passes take, each counted once.
  void add_weights(ModelMemory& memory) const;
  const std::shared_ptr<Arena>& arena() const { return arena_; }
  // What runs slower than it should, a line each.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  std::unique_ptr<Program> student(TrainPass pass, const Graph& plain);
  std::unique_ptr<Program> program_of(const std::shared_ptr<Graph>& graph, const Weights& weights);

  std::shared_ptr<const Model> model_;
  std::function<bool()> cancelled_;
  std::shared_ptr<const Model> wide_;  // in high precision: for a teacher and for the reference
  const TrainRules& rules_;
  LoraSites sites_;
  const Parameters& parameters_;
  std::list<Entry> programs_;  // the most recent first
  std::shared_ptr<Arena> arena_ = std::make_shared<Arena>();
  std::vector<std::string> notes_;
};

}  // namespace halftone
