// A graph that is ready to run: memory planned, weights bound. Weights are shared, not owned, so
// many programs (resolutions, batches, training) use one copy.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "halftone/graph/graph.h"
#include "halftone/kernels/kernels.h"
#include "halftone/passes/plan.h"
#include "halftone/runtime/block_stream.h"
#include "halftone/runtime/weights.h"

namespace halftone {

struct MemoryUse {
  int64_t weights = 0;    // bytes of the weights that the graph uses, where it runs
  int64_t streamed = 0;   // and of those in the CPU's memory that are copied there block by block
  int64_t slots = 0;      // what they are copied into
  int64_t arena = 0;      // values while running
  int64_t workspace = 0;  // scratch memory of kernels
  int64_t library = 0;    // what libraries take for themselves while kernels run
  int64_t borders = 0;    // tensors that are given to a run and come back from it
  int64_t states = 0;     // values that are kept between runs
  int64_t resident = 0;   // on a device: inputs and constants, which stay there from run to run
  int64_t working() const { return arena + workspace + slots + library + borders + states; }
  int64_t in_arena() const { return arena + workspace + slots; }
  int64_t peak() const { return weights + working(); }
};

// Memory that programs use while they run, on one device. Programs that do not run at the same time
// share one.
class Arena {
 public:
  // At least this much, kept from then on; what was there before is lost. The device is null for
  // the CPU.
  std::byte* reserve(int64_t bytes, DeviceContext* device);
  // The first reservation will be of this much: growing step by step would leave holes.
  void expect(int64_t bytes) { expected_ = std::max(expected_, bytes); }
  // Nothing is held, and nothing expected, until the next reservation.
  void release() {
    memory_ = nullptr;
    expected_ = 0;
  }

 private:
  int64_t expected_ = 0;
  std::shared_ptr<Storage> memory_;
};

// How a program runs.
struct ProgramOptions {
  const Kernels* kernels = nullptr;
  Stream stream;
  // Devices that can: launches are recorded during the second run and replayed from then on.
  bool record = false;
  // Asked between nodes, where they are run one by one: true ends the run with Error{kCancelled}.
  std::function<bool()> cancelled;
  // Only its memory is asked for, and it never runs: weights may be imagined (Storage::imagine).
  bool plan_only = false;
};

class Program {
 public:
  // Weights that are missing, mis-shaped or in another format than the graph's are listed by name
  // in one Error. Memory is known from here on, and allocated by the first run. Weights are on the
  // stream's device, or in a HostBlock: then they are copied there in every run.
  Program(std::shared_ptr<const Graph> graph, const Weights& weights, const ProgramOptions& options,
          std::shared_ptr<Arena> arena = std::make_shared<Arena>());
  Program(std::shared_ptr<const Graph> graph, const Weights& weights, const Kernels& kernels,
          Stream stream)
      : Program(std::move(graph), weights, {&kernels, stream}) {}

  const MemoryUse& memory() const { return memory_; }
  const Graph& graph() const { return *graph_; }
  // Where a slow reference stands in for a fast kernel, a line each.
  const std::vector<std::string>& notes() const { return notes_; }

  // Runs with one tensor per input of the graph. Outputs are copies in the CPU's memory and outlive
  // the program.
  std::map<std::string, Tensor> run(const std::map<std::string, Tensor>& inputs);

  // The same in parts, for what stays on a device from one run to the next. An input holds for all
  // runs until it is set again: one in the CPU's memory goes up here, one in the device's is copied
  // there. On the CPU it is not copied, and may not change before the last run that it is for.
  void set_input(const std::string& name, const Tensor& tensor);
  // The same for some rows of an input, from this one on; the others stay.
  void set_input_rows(const std::string& name, int64_t first, const Tensor& rows);
  void run();
  // Outputs in groups, by name, for runs that tell when they are there. Recordings then are in
  // parts.
  void set_groups(const std::vector<std::vector<std::string>>& groups);
  bool has_groups() const { return !borders_.empty(); }
  std::vector<size_t> order_of_groups() const;  // in which they are done
  // `done` is called once for each group of outputs, in the order in which they are done: when the
  // last of a group has been computed or, on a device, launched, while the rest of the run is still
  // to come. Where weights are streamed from recordings, that is at the end of the run.
  using GroupDone = std::function<void(size_t group)>;
  void run_in_groups(const GroupDone& done);
  Tensor output(const std::string& name) const;         // in the CPU's memory
  Tensor device_output(const std::string& name) const;  // where the program runs
  // Rows of an output, from this one on, into memory where the program runs.
  void copy_output_rows(const std::string& name, int64_t first, const Tensor& to) const;
  // A row of an output to one of another program's input, both being where programs run.
  void hand_over_row(const std::string& output, int64_t from, Program& other,
                     const std::string& input, int64_t to) const;
  bool reads(const std::string& input) const { return graph_->inputs().contains(input); }
  bool gives(const std::string& output) const { return graph_->outputs().contains(output); }
  // States are zeros before the first run.
  void set_state(const std::string& name, const Tensor& tensor);
  Tensor state(const std::string& name);  // a copy in the CPU's memory

  // Seconds of each of so many runs on what the last run was given, without copying to and from
  // the device. Needs a device.
  std::vector<double> device_seconds(int runs);
  bool recorded() const { return !recordings_.empty(); }

  // Told how long each node took, from now on. Then nothing is recorded or replayed.
  using NodeTimer = std::function<void(const Node& node, double seconds)>;
  void set_timer(NodeTimer timer) { timer_ = std::move(timer); }

  // Shown what linears read, in the CPU's memory, from now on: those whose weight it wants. Then
  // nothing is recorded.
  struct LinearObserver {
    std::function<void(const std::string& weight, const ConstView& input)> see;
    std::function<bool(const std::string& weight)> wants;  // empty: all
  };
  void set_observer(LinearObserver observer) { observer_ = std::move(observer); }

 private:
  void bind_weights(const Weights& weights);
  void prepare_memory();
  void prepare_states();
  void put(int id, const Tensor& tensor);
  std::byte* own_memory(int id);
  struct OutputRow {  // of an output, from this row on
    const std::byte* data = nullptr;
    DType dtype = DType::kF32;
    int64_t rows = 0, bytes = 0;  // that the output has, and of each
  };
  OutputRow output_row(const std::string& name, int64_t index) const;
  void copy_here(std::byte* to, const std::byte* from, int64_t bytes) const;
  void copy_in(std::byte* to, const Tensor& from) const;
  void update_states();
  // Nodes up to `end`, and the groups that are done then.
  struct Border {
    size_t end = 0;
    std::vector<size_t> groups;
  };
  void compute(const GroupDone& done);
  void launch_all(const GroupDone& done);
  void launch_nodes(size_t begin, size_t end, BlockStream::Run* blocks);
  void record_parts();
  void replay(const GroupDone& done);
  void launch_one(const Node& node);
  void observe(const Node& node, const ConstView& input);
  Tensor read(int id) const;
  Value find_value(const std::map<std::string, Value>& among, const std::string& name,
                   const char* kind) const;
  ConstView const_view(int id) const;
  View view(int id) const;
  DeviceContext* device() const { return options_.stream.device; }

  std::shared_ptr<const Graph> graph_;
  ProgramOptions options_;
  MemoryPlan plan_;
  MemoryUse memory_;
  std::vector<std::string> notes_;
  std::map<int, Weight> bound_;          // value -> weight, constant, state or input
  std::unique_ptr<BlockStream> blocks_;  // where weights are streamed
  NodeTimer timer_;
  LinearObserver observer_;
  std::shared_ptr<Storage> observed_;  // what came from a device to be seen
  std::shared_ptr<Arena> arena_;
  std::byte* memory_start_ = nullptr;  // of the arena, during a run

  // Memory of our own: states; on devices constants and inputs as well, whose addresses recordings
  // hold.
  std::map<int, Tensor> resident_;
  std::vector<Border> borders_;  // in their order
  // One up to each border, null where nothing lies between, and one of the rest; or one of all.
  std::vector<std::unique_ptr<Recording>> recordings_;
  bool warm_ = false;  // has run at this address of the arena
};

}  // namespace halftone
