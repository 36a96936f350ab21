// Processes that work together: that train one model, each on its own rows of every batch, or make
// the pictures of one list.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace halftone {

// One alone, unless a class says otherwise.
class Collective {
 public:
  using Stop = std::function<bool()>;

  Collective() = default;
  virtual ~Collective() = default;
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  virtual int rank() const { return 0; }
  virtual int size() const { return 1; }
  // Among the processes of this machine, which share its devices and cores.
  virtual int local_rank() const { return 0; }
  virtual int local_size() const { return 1; }
  bool is_first() const { return rank() == 0; }  // who writes and tells

  // Sums over all processes, to the same bits in each. `stop` is asked while others are waited for:
  // true ends the wait soon with Error{kCancelled}, after which they cannot be reached any more.
  // One thread at a time, any of them.
  virtual void sum(std::span<float> /*values*/, const Stop& /*stop*/) {}
  virtual void sum(std::span<double> /*values*/, const Stop& /*stop*/) {}
  double sum(double value, const Stop& stop) {
    sum({&value, 1}, stop);
    return value;
  }
  // What each says, in the order of ranks, told to all. For short texts.
  virtual std::vector<std::string> gather(const std::string& own, const Stop& stop);
  // Whether this process or another is to stop: `own` says so of this one, and then the others are
  // told. Asked often, between kernels, by any thread. One that has died says so, too.
  virtual bool stopping(bool own) { return own; }
  // Which of this machine's processes has ended without a word, as a line; empty: none, as far as
  // is known.
  virtual std::string lost() { return {}; }
  // Who writes and tells then: the first of those that are not lost.
  virtual bool is_first_left() { return is_first(); }
  // All say that they are done. One that ends without having said so ends the others.
  virtual void leave() {}
  // Stops, somewhere within a step: the others wait here until the first has saved, so that none is
  // ended while it does; the first waits a while for them. Where one is lost, the others wait until
  // the first that is left has ended.
  virtual void give_up() {}
};

// Whether mpirun has started this process: after Ctrl-C it ends what it has started by force,
// within about a second.
bool was_started_by_mpirun();

// Those that mpirun has started, or one alone. An Error where it has started several and this build
// has no MPI.
std::unique_ptr<Collective> join_processes();

}  // namespace halftone
