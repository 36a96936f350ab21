// One worker's way to use a Model: the programs that it has built so far, by shape, and the memory
// that they run in. Not for two threads at once; two Pipelines on one Model are.
#pragma once

#include <array>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "halftone/diffusion/schedule.h"
#include "halftone/engine/memory_ladder.h"
#include "halftone/engine/model.h"
#include "halftone/engine/sampler_graph.h"
#include "halftone/engine/step_cache.h"
#include "halftone/engine/tiles.h"

namespace halftone {

// Memory of a model while it generates.
struct ModelMemory {
  int64_t file_weights = 0;      // weights read in place from their files
  int64_t owned_weights = 0;     // weights converted on loading, and adapters
  int64_t streamed_weights = 0;  // weights in the CPU's memory that are streamed to a device
  int64_t arena = 0;             // values while running, of the largest program
  int64_t workspace = 0;         // scratch memory of kernels, of the largest program
  int64_t slots = 0;             // what blocks are streamed into, of the largest program
  int64_t library = 0;           // what libraries take for themselves while kernels run
  int64_t borders = 0;  // what the largest program is given and gives back; on a device what
                        // all programs are given, and the latents of jobs
  int64_t process = 0;  // what the process holds besides, where that is known
  // What the process needs besides the files that it maps.
  int64_t running() const { return arena + workspace + slots + library + borders; }
  int64_t in_arena() const { return arena + workspace + slots; }
  int64_t peak() const { return owned_weights + running() + process; }
};

// The same part by part: what is resident together decides what the whole takes.
struct PhaseMemory {
  ModelMemory text;      // encoders, and encoding prompts
  ModelMemory picture;   // denoiser, adapters and codec; all steps, and decoding
  ModelMemory all;       // everything resident
  int64_t adapters = 0;  // of their weights, which are in each of these
  RunningNeeds encoding, denoising, decoding;
  // Where text and picture take turns: the larger of them.
  const ModelMemory& turns() const { return text.peak() > picture.peak() ? text : picture; }
};

// Told the inputs of linears before they run, as rows in the CPU's memory.
using LinearObserver = Program::LinearObserver;

// What blocks gave, in the order in which they run.
using BlockOutputs = std::vector<std::pair<std::string, Tensor>>;

// An adapter in use, and how strongly.
struct AdapterChoice {
  std::shared_ptr<const Adapter> adapter;
  float strength = 1;

  bool operator==(const AdapterChoice&) const = default;
};
using AdapterChoices = std::vector<AdapterChoice>;
// Adapters of all rows, each once, in an order that does not depend on the rows.
std::vector<std::shared_ptr<const Adapter>> adapter_slots(
    std::span<const AdapterChoices* const> rows);
float strength_of(const AdapterChoices& row, const std::shared_ptr<const Adapter>& adapter);
// Those that change text encoders, each once, in that order.
AdapterChoices text_adapters(const AdapterChoices& row);

// What a network may be told besides a prompt, where it reads it.
struct Told {
  float guidance = 0;
  PictureSizes sizes;
};

// Rows that share a forward. Conditions, adapters and caches are one per row; no adapters, or no
// caches at all: empty.
struct Rows {
  std::span<const Condition* const> conditions;
  std::span<const AdapterChoices* const> adapters;
  std::span<RowCache* const> caches = {};
};

class Pipeline {
 public:
  // `cancelled` is asked between kernels, and true ends a run. The arena may be shared with what
  // runs in turns with this.
  explicit Pipeline(std::shared_ptr<const Model> model, std::function<bool()> cancelled = {},
                    std::shared_ptr<Arena> arena = std::make_shared<Arena>());

  // Where parts take turns, without any of them: those come and go.
  const Model& model() const { return *shared_model(); }
  const std::shared_ptr<const Model>& shared_model() const {
    return takes_turns_ ? loaded_ : model_;
  }
  // What is in memory now.
  PlacedParts placed() const { return model_->placed(); }

  // Memory for steps of this kind with latents of this shape, each row with one of these prompts.
  // Prompts that have more tokens than the model takes are an Error. Nothing is run or allocated.
  // With caches each row has one.
  ModelMemory plan(const Shape& latents, const SamplerGraph& sampler,
                   std::span<const std::string> prompts, const AdapterChoices& adapters = {},
                   bool caches = false);

  PhaseMemory plan_phases(const Shape& latents, const SamplerGraph& sampler,
                          std::span<const std::string> prompts, const AdapterChoices& adapters = {},
                          bool caches = false);

  // From now on text encoders are placed only while prompts are encoded, and denoiser and codec
  // only while pictures are made: whatever is needed is brought back from the files when it comes
  // to that, and the other part's memory is free, unless somebody else uses it. Prompts that are
  // remembered, as the last few are, need no encoders.
  void take_turns();
  bool takes_turns() const { return takes_turns_; }

  // Pictures larger than a tile are decoded in tiles from now on; none: whole.
  void set_tiles(const std::optional<TileSize>& tiles) { tiles_ = tiles; }
  const std::optional<TileSize>& tiles() const { return tiles_; }

  // The same for encoding pictures [1, 3, H, W] and the longest of these prompts; those that are
  // too long are left out.
  ModelMemory plan_encoding(const Shape& pictures, std::span<const std::string> prompts);

  // The last few prompts are remembered, and those that are told here for good. With the adapters
  // of `set_adapters`, if no others are given: some change text encoders.
  Condition encode(const std::string& prompt);
  Condition encode(const std::string& prompt, const AdapterChoices& adapters);
  Condition encode(const std::string& prompt, const Told& told);
  Condition encode(const std::string& prompt, const Told& told, const AdapterChoices& adapters);
  // None is given, which is not always the same as the empty prompt.
  Condition encode_negative(const std::optional<std::string>& prompt, const Told& told);
  Condition encode_negative(const std::optional<std::string>& prompt, const Told& told,
                            const AdapterChoices& adapters);
  // What each encoder gives for it, run anew.
  std::vector<NamedTensors> encoder_results(const std::string& prompt);
  // As it is without adapters of text encoders.
  void remember(const std::string& prompt, Condition condition);
  // The prediction for each row of latents [rows, ...], at a step of its own.
  Tensor predict(const Tensor& latents, std::span<const SamplerStep* const> at, const Rows& rows);
  // The same of one row, with the adapters of `set_adapters`.
  Tensor predict(const Tensor& latents, const SamplerStep& at, const Condition& condition,
                 RowCache* cache = nullptr);
  // What every block of the denoiser gives on the way to that, F32, in the order in which they run:
  // for finding where a precision loses.
  BlockOutputs block_outputs(const Tensor& latents, const SamplerStep& at,
                             const Condition& condition);
  // Pictures [B, 3, H, W], about -1 to 1.
  Tensor decode(const Tensor& latents);
  // And back: latents [B, C, h, w] as a sampler leaves them, the middle of what they may be.
  Tensor encode_pictures(const Tensor& pictures);

  // A prediction and the sampler's step behind it: `give` sets the inputs of the sampler, `take`
  // copies what it gave. Latents are one tensor per row, where the model runs. A prediction without
  // some blocks is made before that, where the sampler takes one.
  using UseProgram = std::function<void(Program&)>;
  void run_step(const SamplerGraph& sampler, const Rows& rows, std::span<const float> times,
                std::span<const Tensor> latents, const UseProgram& give, const UseProgram& take);

  // To where the model runs, as a copy, and back.
  Tensor place(const Tensor& tensor) const;
  Tensor fetch(const Tensor& tensor) const;

  // Of predictions of one row, and of prompts.
  void set_adapters(AdapterChoices adapters) { adapters_ = std::move(adapters); }
  const AdapterChoices& adapters() const { return adapters_; }

  // From the next prediction on; an empty one ends it. Needs a model that is not compiled.
  void observe_linears(LinearObserver observer);
  // As Model::with_recipe, from the model that this pipeline was made for.
  void set_recipe(const std::optional<QuantizeRecipe>& recipe,
                  const WeightQuantizer& quantizer = {});

  // Graphs that were built and planned so far: shapes that came back cost nothing.
  int programs_built() const { return built_; }
  // What runs slower than it should, and why, a line each.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  Condition tell(Condition condition, const Told& told) const;
  // Parts that are needed next are placed; those of the other turn are not.
  void need(PlacedParts parts);
  void add_note(const std::string& note);
  struct Entry {
    std::string key;
    std::unique_ptr<Program> program;
    std::vector<const std::byte*> bound;  // what conditions the program was last given
    std::vector<Condition> held;          // so that addresses are theirs alone
    std::vector<std::shared_ptr<const Adapter>> adapters;  // for the same reason: keys name them
  };
  // The last few programs of a part.
  using Programs = std::list<Entry>;
  using Slots = std::vector<std::shared_ptr<const Adapter>>;  // adapters of all rows

  template <class Build>
  Entry& entry(Programs& programs, const std::string& key, const ModelPart& part,
               const Slots& adapters, const Build& build, const std::optional<Cut>& cut = {},
               AdaptedPart adapted = kDenoiserPart);
  Entry& encoder_program(size_t index, int64_t tokens, const Slots& adapters = {});
  std::vector<NamedTensors> encoder_results(const std::string& prompt,
                                            const AdapterChoices& adapters);
  // What a denoiser's graph is made for besides its shape.
  struct Use {
    bool tap_blocks = false;
    std::set<int64_t> skip_blocks = {};
    std::optional<SamplerGraph> sampler = {};
    std::optional<CachedPart> part = {};  // of it, where rows have caches

    // The sampler is behind the rest.
    Use of(CachedPart which) const {
      return {tap_blocks, skip_blocks, which == CachedPart::kRest ? sampler : std::nullopt, which};
    }
  };
  Entry& denoiser_program(const DenoiserShape& shape, const Use& use, const Slots& adapters);
  // All that a step may run; each row has a cache, or none has.
  std::vector<const Entry*> step_programs(const DenoiserShape& shape, const SamplerGraph& sampler,
                                          const Slots& adapters, bool caches);
  // Of one decoding: the picture's, or a tile's.
  Shape decoded_together(const Shape& latents) const;
  Entry& decoder_program(const Shape& latents);
  Entry& picture_program(const Shape& pictures);
  // Rows at their times, as a graph takes them.
  struct Forward {
    DenoiserShape shape;
    Slots adapters;
    std::vector<float> times;
    Rows rows;
  };
  Forward forward_of(const Shape& latents, std::span<const float> times, const Rows& rows) const;
  // Predictions of these rows without some blocks, where the model runs.
  std::vector<Tensor> predict_without(const std::set<int64_t>& blocks, const Rows& rows,
                                      std::span<const float> times,
                                      std::span<const Tensor> latents);
  // The program for these rows, with everything given but latents.
  Program& prepare(const Forward& forward, const Use& use);
  // `give` sets what it reads besides.
  void run(const Forward& forward, const Use& use, const UseProgram& give_latents,
           const UseProgram& give, const UseProgram& take);
  void run_with_caches(const Forward& forward, const Use& use, const UseProgram& give_latents,
                       const UseProgram& give, const UseProgram& take);

  std::shared_ptr<const Model> loaded_, model_;
  bool takes_turns_ = false;
  std::optional<TileSize> tiles_;
  std::function<bool()> cancelled_;
  // Encoders, denoiser and codec run one after the other.
  std::shared_ptr<Arena> arena_;
  std::vector<Programs> encoders_;
  Programs denoisers_, decoders_, picture_encoders_;
  std::array<Programs, 3> cached_parts_;
  int built_ = 0;
  std::vector<std::string> notes_;
  LinearObserver observer_;
  AdapterChoices adapters_;
  struct Known {
    std::string prompt;
    AdapterChoices adapters;  // that change text encoders
    Condition condition;
  };
  std::list<Known> known_;  // prompts, the most recent first
  std::map<std::string, Condition> remembered_;
};

}  // namespace halftone
