#include "halftone/io/safetensors_header.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <unordered_set>

#include "halftone/io/json.h"
#include "halftone/io/refuse.h"

namespace halftone {
namespace {

// Far more than any model has; they bound what a hostile header makes us allocate.
constexpr size_t kMaxTensors = 1'000'000;
constexpr size_t kMaxMetadata = 100'000;
constexpr size_t kMaxFields = 64;

// Receives the header's JSON event by event: no document is built, and duplicate keys are seen.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(const std::string& file, SafetensorsHeader& header) : file_(file), out_(header) {}

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::kStart:
        state_ = State::kEntries;
        return true;
      case State::kEntryValue:
        state_ = name_ == "__metadata__" ? State::kMetadata : State::kEntry;
        entry_ = {};
        return true;
      case State::kSkip:
        ++skip_depth_;
        return true;
      default:
        unexpected("an object");
    }
  }

  bool key(std::string& key) override {
    switch (state_) {
      case State::kEntries:
        name_ = std::move(key);
        if (!names_.insert(name_).second) {
          refuse_file(file_, "duplicate key '" + printable(name_) + "'");
        }
        // One of them may be __metadata__.
        if (names_.size() > kMaxTensors + 1) refuse_file(file_, "more than a million tensors");
        state_ = State::kEntryValue;
        return true;
      case State::kMetadata:
        metadata_key_ = std::move(key);
        if (out_.metadata.contains(metadata_key_)) {
          refuse_file(file_, "duplicate metadata key '" + printable(metadata_key_) + "'");
        }
        if (out_.metadata.size() >= kMaxMetadata) refuse_file(file_, "too many metadata entries");
        state_ = State::kMetadataValue;
        return true;
      case State::kEntry:
        return entry_key(key);
      default:
        return true;  // inside a field that is skipped
    }
  }

  bool string(std::string& value) override {
    switch (state_) {
      case State::kMetadataValue:
        out_.metadata.emplace(metadata_key_, std::move(value));
        state_ = State::kMetadata;
        return true;
      case State::kDType:
        entry_.dtype = find_dtype(value);
        if (!entry_.dtype) refuse_tensor(file_, name_, "unknown dtype '" + printable(value) + "'");
        state_ = State::kEntry;
        return true;
      default:
        return scalar("a string");
    }
  }

  bool start_array(std::size_t) override {
    switch (state_) {
      case State::kShape:
        entry_.shape.emplace();
        state_ = State::kShapeItems;
        return true;
      case State::kOffsets:
        entry_.offsets.emplace();
        state_ = State::kOffsetsItems;
        return true;
      case State::kSkip:
        ++skip_depth_;
        return true;
      default:
        unexpected("an array");
    }
  }

  bool number_unsigned(std::uint64_t value) override {
    if (state_ != State::kShapeItems && state_ != State::kOffsetsItems) return scalar("a number");
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      refuse_tensor(file_, name_, "number " + std::to_string(value) + " is too large");
    }
    auto& list = state_ == State::kShapeItems ? *entry_.shape : *entry_.offsets;
    const size_t most = state_ == State::kShapeItems ? Shape::kMaxRank : 2;
    if (list.size() == most) {
      refuse_tensor(file_, name_,
                    state_ == State::kShapeItems ? "more than 8 dimensions"
                                                 : "data_offsets has more than two numbers");
    }
    list.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool end_array() override {
    state_ == State::kSkip ? leave_skipped() : void(state_ = State::kEntry);
    return true;
  }

  bool end_object() override {
    switch (state_) {
      case State::kSkip:
        leave_skipped();
        return true;
      case State::kEntry:
        finish_entry();
        state_ = State::kEntries;
        return true;
      case State::kMetadata:
        state_ = State::kEntries;
        return true;
      default:
        state_ = State::kEnd;
        return true;
    }
  }

  bool null() override { return scalar("null"); }
  bool boolean(bool) override { return scalar("a boolean"); }
  bool number_integer(std::int64_t) override { return scalar("a negative number"); }
  bool number_float(double, const std::string&) override { return scalar("a fraction"); }
  bool binary(nlohmann::json::binary_t&) override { return scalar("binary data"); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    bad_json(position);
  }

  [[noreturn]] void bad_json(std::size_t position) const {
    refuse_file(file_, "header is not valid JSON at byte " + std::to_string(position));
  }

 private:
  enum class State {
    kStart,
    kEntries,
    kEntryValue,
    kMetadata,
    kMetadataValue,
    kEntry,
    kDType,
    kShape,
    kShapeItems,
    kOffsets,
    kOffsetsItems,
    kSkip,
    kEnd,
  };

  struct Partial {
    std::optional<DType> dtype;
    std::optional<std::vector<int64_t>> shape;
    std::optional<std::vector<int64_t>> offsets;
    std::unordered_set<std::string> keys;
  };

  bool entry_key(const std::string& key) {
    if (!entry_.keys.insert(key).second) {
      refuse_tensor(file_, name_, "duplicate key '" + printable(key) + "'");
    }
    if (entry_.keys.size() > kMaxFields) refuse_tensor(file_, name_, "too many fields");
    state_ = key == "dtype"          ? State::kDType
             : key == "shape"        ? State::kShape
             : key == "data_offsets" ? State::kOffsets
                                     : State::kSkip;
    skip_depth_ = 0;
    return true;
  }

  bool scalar(const char* what) {
    if (state_ != State::kSkip) unexpected(what);
    if (skip_depth_ == 0) state_ = State::kEntry;
    return true;
  }

  void leave_skipped() {
    if (--skip_depth_ == 0) state_ = State::kEntry;
  }

  void finish_entry() {
    if (!entry_.dtype) refuse_tensor(file_, name_, "has no dtype");
    if (!entry_.shape) refuse_tensor(file_, name_, "has no shape");
    if (!entry_.offsets || entry_.offsets->size() != 2) {
      refuse_tensor(file_, name_, "has no data_offsets of two numbers");
    }
    out_.tensors.push_back(
        {name_, *entry_.dtype, Shape(*entry_.shape), (*entry_.offsets)[0], (*entry_.offsets)[1]});
  }

  [[noreturn]] void unexpected(const char* what) {
    const std::string reason = std::string("unexpected ") + what + " in the header";
    const bool in_tensor = state_ != State::kStart && state_ != State::kEntries &&
                           state_ != State::kMetadata && state_ != State::kMetadataValue;
    if (in_tensor) refuse_tensor(file_, name_, reason);
    if (state_ == State::kMetadataValue) {
      refuse_file(file_, "metadata '" + printable(metadata_key_) + "' is not a string");
    }
    refuse_file(file_, reason);
  }

  const std::string& file_;
  SafetensorsHeader& out_;
  State state_ = State::kStart;
  std::string name_;
  std::string metadata_key_;
  Partial entry_;
  int skip_depth_ = 0;
  std::unordered_set<std::string> names_;
};

void check_size(const TensorEntry& tensor, int64_t data_size, const std::string& file) {
  const auto bytes = tensor.shape.checked_bytes(tensor.dtype);
  if (!bytes) {
    const auto n = tensor.shape.checked_numel();
    const bool partial = n && *n <= std::numeric_limits<int64_t>::max() / bits_of(tensor.dtype);
    refuse_tensor(file, tensor.name,
                  fmt::format("shape {} of {} {}", tensor.shape, name_of(tensor.dtype),
                              partial ? "does not fill whole bytes" : "overflows"));
  }
  if (tensor.begin > tensor.end || tensor.end > data_size) {
    refuse_tensor(
        file, tensor.name,
        fmt::format("bytes {} to {} lie outside the {} bytes of data (is the file truncated?)",
                    tensor.begin, tensor.end, data_size));
  }
  if (tensor.byte_size() != *bytes) {
    refuse_tensor(file, tensor.name,
                  fmt::format("{} bytes of data, but shape {} of {} takes {}", tensor.byte_size(),
                              tensor.shape, name_of(tensor.dtype), *bytes));
  }
}

void check_coverage(const std::vector<TensorEntry>& tensors, int64_t data_size,
                    const std::string& file) {
  int64_t covered = 0;
  const TensorEntry* previous = nullptr;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.begin < covered) {
      HT_ASSERT(previous != nullptr);  // nothing lies before 0
      refuse_tensor(file, tensor.name,
                    "its bytes overlap those of tensor '" + printable(previous->name) + "'");
    }
    if (tensor.begin > covered) {
      refuse_tensor(file, tensor.name,
                    fmt::format("{} bytes before it belong to no tensor", tensor.begin - covered));
    }
    covered = tensor.end;
    previous = &tensor;
  }
  if (covered != data_size) {
    refuse_file(file, fmt::format("{} bytes at the end belong to no tensor", data_size - covered));
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> bytes,
                                           const std::string& file) {
  const auto size = static_cast<int64_t>(bytes.size());
  if (size < 8) refuse_file(file, fmt::format("{} bytes are too few for a safetensors file", size));
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<uint64_t>(bytes[i]);
  if (length > static_cast<uint64_t>(size - 8)) {
    refuse_file(file,
                fmt::format("header length {} is beyond the file's {} bytes (not safetensors, or "
                            "truncated)",
                            length, size));
  }
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeader)) {
    refuse_file(file, fmt::format("header of {} bytes is over the limit of {}", length,
                                  kMaxSafetensorsHeader));
  }
  SafetensorsHeader header;
  header.data_offset = 8 + static_cast<int64_t>(length);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, length);
  HeaderReader reader(file, header);
  if (const auto at = find_foreign_byte(text)) reader.bad_json(*at + 1);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);

  const int64_t data_size = size - header.data_offset;
  for (const TensorEntry& tensor : header.tensors) check_size(tensor, data_size, file);
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorEntry& a, const TensorEntry& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  check_coverage(header.tensors, data_size, file);
  return header;
}

std::string write_safetensors_header(std::span<const TensorEntry> tensors, const Metadata& metadata,
                                     const std::string& file) {
  const auto quoted = [](const std::string& value) { return nlohmann::json(value).dump(); };
  std::string text = "{";
  if (!metadata.empty()) text += "\"__metadata__\":" + nlohmann::json(metadata).dump() + ",";
  for (const TensorEntry& tensor : tensors) {
    text += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},",
                        quoted(tensor.name), name_of(tensor.dtype),
                        fmt::join(tensor.shape.dims(), ","), tensor.begin, tensor.end);
  }
  if (text.back() == ',') text.pop_back();
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (tensors.size() > kMaxTensors || metadata.size() > kMaxMetadata ||
      text.size() > static_cast<size_t>(kMaxSafetensorsHeader)) {
    refuse_file(file,
                fmt::format("its header would be of {} bytes, {} tensors and {} metadata entries, "
                            "more than readers take ({}, {}, {})",
                            text.size(), tensors.size(), metadata.size(), kMaxSafetensorsHeader,
                            kMaxTensors, kMaxMetadata));
  }
  std::string out(8, '\0');
  for (int i = 0; i < 8; ++i) out[i] = static_cast<char>(text.size() >> (8 * i) & 0xFF);
  return out + text;
}

}  // namespace halftone
