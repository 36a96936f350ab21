// How a Pipeline predicts: rows given to programs of the denoiser, whole or in parts.
#include <algorithm>
#include <numeric>

#include "halftone/base/error.h"
#include "halftone/engine/pipeline.h"
#include "halftone/nn/block_ends.h"
#include "halftone/tensor/float_values.h"

namespace halftone {
namespace {

void set_if_read(Program& program, const std::string& name, const Tensor& tensor) {
  if (program.reads(name)) program.set_input(name, tensor);
}

void give_rows(Program& program, const std::string& name, std::span<const Tensor> rows) {
  if (!program.reads(name)) return;
  for (size_t i = 0; i < rows.size(); ++i) {
    program.set_input_rows(name, static_cast<int64_t>(i), rows[i]);
  }
}

double sum_of_row(const Tensor& tokens, int64_t row) {
  const auto values = tokens.rows(row, row + 1).as<float>();
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// To rows of a later part, from rows of one that has run: what both know by a name.
void hand_over(const Program& from, std::span<const int64_t> rows, Program& to) {
  for (const auto& [name, input] : to.graph().inputs()) {
    if (!from.gives(name)) continue;
    for (size_t i = 0; i < rows.size(); ++i) {
      from.hand_over_row(name, rows[i], to, name, static_cast<int64_t>(i));
    }
  }
}

}  // namespace

std::vector<std::shared_ptr<const Adapter>> adapter_slots(
    std::span<const AdapterChoices* const> rows) {
  std::vector<std::shared_ptr<const Adapter>> slots;
  for (const AdapterChoices* row : rows) {
    for (const AdapterChoice& choice : *row) {
      if (std::find(slots.begin(), slots.end(), choice.adapter) == slots.end()) {
        slots.push_back(choice.adapter);
      }
    }
  }
  // A row adds what adapters give in one order, whichever other rows are with it.
  std::sort(slots.begin(), slots.end(), [](const auto& a, const auto& b) {
    return a->lora().report().file < b->lora().report().file ||
           (a->lora().report().file == b->lora().report().file && a.get() < b.get());
  });
  return slots;
}

float strength_of(const AdapterChoices& row, const std::shared_ptr<const Adapter>& adapter) {
  float strength = 0;
  for (const AdapterChoice& choice : row) {
    if (choice.adapter == adapter) strength += choice.strength;
  }
  return strength;
}

AdapterChoices text_adapters(const AdapterChoices& row) {
  const AdapterChoices* const one = &row;
  AdapterChoices chosen;
  for (const auto& adapter : adapter_slots({&one, 1})) {
    if (adapter->lora().changes_text()) chosen.push_back({adapter, strength_of(row, adapter)});
  }
  return chosen;
}

Pipeline::Forward Pipeline::forward_of(const Shape& latents, std::span<const float> times,
                                       const Rows& rows) const {
  HT_ASSERT(times.size() == rows.conditions.size());
  std::vector<int64_t> texts;
  for (const Condition* condition : rows.conditions) {
    texts.push_back(condition->at("text").shape()[0]);
  }
  return {model_->denoiser().shape({latents[1], latents[2], latents[3]}, texts),
          adapter_slots(rows.adapters),
          {times.begin(), times.end()},
          rows};
}

// Positions and texts are the same for all steps of a picture: they go up once.
Program& Pipeline::prepare(const Forward& forward, const Use& use) {
  need({.text = false, .picture = true});
  const Rows& rows = forward.rows;
  Entry& entry = denoiser_program(forward.shape, use, forward.adapters);
  Program& program = *entry.program;
  std::vector<const std::byte*> wanted;
  for (const Condition* condition : rows.conditions) {
    for (const auto& [name, tensor] : *condition) wanted.push_back(tensor.address());
  }
  if (entry.bound != wanted) {
    for (const auto& [name, tensor] : model_->denoiser().inputs(forward.shape, rows.conditions)) {
      set_if_read(program, name, tensor);
    }
    entry.bound = wanted;
    entry.held.clear();
    for (const Condition* condition : rows.conditions) entry.held.push_back(*condition);
  }
  for (size_t slot = 0; slot < forward.adapters.size(); ++slot) {
    if (!program.reads(lora_strength_name(slot))) continue;
    const auto& adapter = forward.adapters[slot];
    std::vector<float> strengths;
    for (const AdapterChoices* row : rows.adapters) {
      strengths.push_back(strength_of(*row, adapter));
    }
    program.set_input(lora_strength_name(slot), adapter->lora().strengths(strengths));
  }
  Tensor time = Tensor::empty(DType::kF32, {static_cast<int64_t>(forward.times.size())});
  std::copy(forward.times.begin(), forward.times.end(), time.mutable_as<float>().begin());
  set_if_read(program, "time", time);
  program.set_observer(observer_);
  return program;
}

void Pipeline::run(const Forward& forward, const Use& use, const UseProgram& give_latents,
                   const UseProgram& give, const UseProgram& take) {
  if (!forward.rows.caches.empty()) return run_with_caches(forward, use, give_latents, give, take);
  Program& program = prepare(forward, use);
  give_latents(program);
  give(program);
  program.run();
  take(program);
}

// Parts share the arena: what one computed is handed over before another runs.
void Pipeline::run_with_caches(const Forward& forward, const Use& use,
                               const UseProgram& give_latents, const UseProgram& give,
                               const UseProgram& take) {
  const Rows& rows = forward.rows;
  const auto count = static_cast<int64_t>(rows.conditions.size());
  const auto part = [&](const Forward& of, CachedPart which) -> Program& {
    return prepare(of, use.of(which));
  };
  Program& first = part(forward, CachedPart::kFirst);
  give_latents(first);
  for (int64_t b = 0; b < count; ++b) {
    RowCache& cache = *rows.caches[b];
    const ValueType& type = first.graph().inputs().at(kCacheBefore).type();
    if (!cache.before.defined()) {
      std::vector<int64_t> one(type.shape.dims().begin(), type.shape.dims().end());
      one[0] = 1;
      const Tensor zeros = Tensor::zeros(type.dtype, Shape(one));
      cache.before = place(zeros);
      cache.added = place(zeros);
    }
    first.set_input_rows(kCacheBefore, b, cache.before);
    first.set_input_rows(kCacheAdded, b, cache.added);
  }
  first.run();
  const Tensor moved = first.output(kCacheMoved), size = first.output(kCacheSize);
  std::vector<int64_t> all(static_cast<size_t>(count)), computed;
  std::iota(all.begin(), all.end(), 0);
  Program& rest = part(forward, CachedPart::kRest);
  hand_over(first, all, rest);
  for (const int64_t b : all) {
    RowCache& cache = *rows.caches[b];
    first.copy_output_rows(nn::kAfterFirstBlock, b, cache.before);
    if (cache.must_compute(sum_of_row(moved, b), sum_of_row(size, b))) {
      computed.push_back(b);
    } else {
      first.hand_over_row(kCacheGuess, b, rest, nn::kAfterLastBlock, b);
    }
  }

  struct Batch {
    std::span<const int64_t> rows;
    Program* blocks;
  };
  std::vector<Batch> batches;
  std::span<const int64_t> left = computed;
  for (const int64_t size_of_batch : batches_of(static_cast<int64_t>(computed.size()))) {
    const auto some = left.first(static_cast<size_t>(size_of_batch));
    left = left.subspan(some.size());
    std::vector<const Condition*> conditions;
    std::vector<const AdapterChoices*> adapters;
    Forward own{forward.shape, forward.adapters, {}, {}};
    own.shape.rows = size_of_batch;
    for (const int64_t b : some) {
      conditions.push_back(rows.conditions[b]);
      if (!rows.adapters.empty()) adapters.push_back(rows.adapters[b]);
      own.times.push_back(forward.times[b]);
    }
    own.rows = {conditions, adapters};
    Program& blocks = part(own, CachedPart::kBlocks);
    hand_over(first, some, blocks);
    batches.push_back({some, &blocks});
  }
  for (const Batch& batch : batches) {
    batch.blocks->run();
    for (size_t i = 0; i < batch.rows.size(); ++i) {
      const auto from = static_cast<int64_t>(i);
      const int64_t b = batch.rows[i];
      batch.blocks->hand_over_row(nn::kAfterLastBlock, from, rest, nn::kAfterLastBlock, b);
      batch.blocks->copy_output_rows(kCacheAdds, from, rows.caches[b]->added);
    }
  }
  give_latents(rest);
  give(rest);
  rest.run();
  take(rest);
}

Tensor Pipeline::predict(const Tensor& latents, std::span<const SamplerStep* const> at,
                         const Rows& rows) {
  const DeviceGuard guard(model_->options().stream.device);
  std::vector<float> times;
  for (const SamplerStep* step : at) times.push_back(model_->denoiser().time(*step));
  Tensor prediction;
  run(
      forward_of(latents.shape(), times, rows), {},
      [&](Program& program) { set_if_read(program, "latents", latents); }, [](Program&) {},
      [&](const Program& program) { prediction = program.output("sample"); });
  return prediction;
}

void Pipeline::run_step(const SamplerGraph& sampler, const Rows& rows, std::span<const float> times,
                        std::span<const Tensor> latents, const UseProgram& give,
                        const UseProgram& take) {
  const DeviceGuard guard(model_->options().stream.device);
  std::vector<Tensor> skipped;
  if (!sampler.skip_blocks.empty()) {
    const auto jobs = static_cast<size_t>(sampler.jobs);
    const Rows first{rows.conditions.first(jobs), rows.adapters.first(jobs)};
    skipped = predict_without(sampler.skip_blocks, first, times.first(jobs), latents.first(jobs));
  }
  const auto give_all = [&](Program& program) {
    give_rows(program, "skipped", skipped);
    give(program);
  };
  run(
      forward_of(latents[0].shape(), times, rows), {.sampler = sampler},
      [&](Program& program) { give_rows(program, "latents", latents); }, give_all, take);
}

std::vector<Tensor> Pipeline::predict_without(const std::set<int64_t>& blocks, const Rows& rows,
                                              std::span<const float> times,
                                              std::span<const Tensor> latents) {
  std::vector<Tensor> predictions;
  run(
      forward_of(latents[0].shape(), times, rows), {.skip_blocks = blocks},
      [&](Program& program) { give_rows(program, "latents", latents); }, [](Program&) {},
      [&](const Program& program) {
        for (size_t i = 0; i < latents.size(); ++i) {
          predictions.push_back(place(Tensor::zeros(DType::kF32, latents[i].shape())));
          program.copy_output_rows("sample", static_cast<int64_t>(i), predictions.back());
        }
      });
  return predictions;
}

Tensor Pipeline::predict(const Tensor& latents, const SamplerStep& at, const Condition& condition,
                         RowCache* cache) {
  const SamplerStep* step = &at;
  const Condition* row = &condition;
  const AdapterChoices* adapters = &adapters_;
  Rows rows{{&row, 1}, {&adapters, 1}};
  if (cache != nullptr) rows.caches = {&cache, 1};
  return predict(latents, {&step, 1}, rows);
}

BlockOutputs Pipeline::block_outputs(const Tensor& latents, const SamplerStep& at,
                                     const Condition& condition) {
  const float time = model_->denoiser().time(at);
  const Condition* row = &condition;
  const AdapterChoices* adapters = &adapters_;
  Program& program = prepare(forward_of(latents.shape(), {&time, 1}, {{&row, 1}, {&adapters, 1}}),
                             {.tap_blocks = true});
  program.set_input("latents", latents);
  program.run();
  BlockOutputs blocks;
  for (const Region& region : program.graph().regions()) {
    blocks.emplace_back(region.name, as_f32(program.output(region.name)));
  }
  return blocks;
}

}  // namespace halftone
