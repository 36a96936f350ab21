// Writes a safetensors file as a stream. Until finish() succeeds nothing stands under the final
// name (io/output.h).
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "halftone/io/output.h"
#include "halftone/io/safetensors_header.h"
#include "halftone/tensor/tensor.h"

namespace halftone {

struct TensorSpec {
  std::string name;
  DType dtype;
  Shape shape;
};

class SafetensorsWriter {
 public:
  // Places every tensor, reserves the disk space and writes the header. Two tensors of one name
  // or a full disk are Errors at once.
  SafetensorsWriter(const std::filesystem::path& path, std::span<const TensorSpec> tensors,
                    const Metadata& metadata);

  // Appends to one tensor; tensors may come in any order and in pieces.
  void write(std::string_view name, std::span<const std::byte> bytes);
  // Asserts that every tensor is complete, then makes the file durable under its final name.
  void finish();

  int64_t file_size() const { return file_size_; }

 private:
  struct Progress {
    int64_t offset;  // of the next byte, in the file
    int64_t end;
  };

  OutputFile file_;
  int64_t file_size_ = 0;
  std::unordered_map<std::string, Progress> progress_;
};

// All tensors at once.
void write_safetensors(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, Tensor>>& tensors,
                       const Metadata& metadata = {});

}  // namespace halftone
