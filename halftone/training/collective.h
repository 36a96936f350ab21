// Processes that train one model together, each on its own rows of every batch.
#pragma once

#include <functional>
#include <memory>
#include <span>

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
  virtual void sum(std::span<float> /*values*/, const Stop& /*stop*/) {}
  virtual void sum(std::span<double> /*values*/, const Stop& /*stop*/) {}
  double sum(double value, const Stop& stop) {
    sum({&value, 1}, stop);
    return value;
  }
  // All say that they are done. One that ends without having said so ends the others.
  virtual void leave() {}
  // Was interrupted, somewhere within a step: others that were too are waited for, for a while, so
  // that none is ended while it saves.
  virtual void give_up() {}
};

// Those that mpirun has started, or one alone. An Error where it has started several and this build
// has no MPI.
std::unique_ptr<Collective> join_processes();

}  // namespace halftone
