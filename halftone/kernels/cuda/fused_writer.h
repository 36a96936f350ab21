// Inside of fused_source: one writer, whose parts lie in files by what they write. fused_source.cpp
// divides a row among threads and writes the kernel around the rest, fused_loads.cpp what brings
// inputs into registers, fused_steps.cpp arithmetic and stores, fused_quantizers.cpp codes and
// scales.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "halftone/kernels/cuda/fused_source.h"

namespace halftone::cuda {

class FusedWriter {
 public:
  FusedWriter(const FusedRowsAttributes& how, std::span<const DType> types,
              const FusedTuning& tuning);
  FusedSource write();

 private:
  // Something to load: an input as it lies, or as cosines or sines that all heads of a row share.
  struct Source {
    int input = 0;
    int64_t table_width = 0;  // of the head; 0 where it is no table
    bool interleaved = false;
    size_t array = 0;  // whose registers it is in: its own, or those of another piece of a concat
  };

  // ---- how a row is divided, and what is around it (fused_source.cpp) ---------------------------

  static int operand_count(RowFunction function);
  int64_t span() const { return threads_ * vectors_ * wide_; }
  bool exact() const { return pieces_ * span() == length_; }
  // The widest access that every length, start and stride allows.
  void choose_vector();
  int64_t inputs_of_rows() const;
  bool joins_pieces() const;
  bool needs_whole_row() const;
  // A part of a row (a head) whose lanes lie in one warp.
  bool is_within_warp(int64_t width) const;
  bool exchanges(const RowStep& step) const;
  void choose_threads();

  // ---- inputs (fused_loads.cpp) -----------------------------------------------------------------

  static const char* type_name(DType dtype);
  size_t source_of(int input, int64_t table_width, RopeLayout layout);
  const FusedRowsAttributes::Input& input_of(size_t i) const {
    return how_.inputs[sources_[i].input];
  }
  bool is_half_table(size_t i) const {
    return sources_[i].table_width > 0 && sources_[i].interleaved;
  }
  int64_t input_width(size_t i) const;
  std::string declare_pointer(size_t i) const;
  std::string declare_values(size_t i) const;
  // Where vector v's columns lie within a row of input i.
  std::string column(size_t i) const;
  std::string each_vector(const std::string& what) const;
  std::string fetch(size_t i, const std::string& row) const;
  // Pieces lie at different columns, so one array holds them all: what a thread has of it is of one
  // or the other. Whatever is computed of another piece's values is not selected.
  size_t array_for(int input) const;
  std::string unpack(size_t i) const;
  std::string write_items() const;
  // The name of a step's operand, loaded by now.
  std::string operand(const RowStep& step, int k);

  // ---- steps (fused_steps.cpp) ------------------------------------------------------------------

  // y[v][i] = expression, for every value.
  void each(size_t index, const std::string& expression);
  void write_step(size_t index);
  // total{index}[v]: `term` summed over what a norm spans.
  void write_total(const RowStep& s, const std::string& name, const std::string& term);
  void write_mean(const RowStep& s, const std::string& x, size_t index);
  void write_moment(const RowStep& s, const std::string& x, const std::string& mean,
                    const std::string& name, size_t index);
  void write_rms_norm_grad(const RowStep& s, size_t index);
  void write_rope(const RowStep& s, size_t index);

  // ---- quantizers (fused_quantizers.cpp) --------------------------------------------------------

  void write_quantize(const RowStep& s);
  // A scale for each block, whose lanes are neighbours.
  void write_quantize_blocks(const RowStep& s, const std::string& x);

  const FusedRowsAttributes& how_;
  std::span<const DType> types_;
  const FusedTuning& tuning_;
  int64_t length_, most_threads_;
  std::vector<Source> sources_;
  std::set<size_t> read_;  // sources that the body has read or unpacked
  int64_t wide_ = 1, threads_ = 0, vectors_ = 1, pieces_ = 1;
  int64_t resident_threads_ = 0;
  bool prefetch_ = false;
  bool keep_ = true;  // what rows share stays in registers
  int sites_ = 0;     // reductions among a block's threads, each with memory of its own
  bool exchanges_ = false;
  std::string body_;
};

}  // namespace halftone::cuda
