#include "halftone/io/sentencepiece_file.h"

#include <cstring>

#include "halftone/base/error.h"

namespace halftone {
namespace {

constexpr size_t kMostPieces = 1 << 22;  // Gemma has 262,144

// The fields of one protobuf message.
class Message {
 public:
  Message(std::string_view bytes, const std::string& where, std::string name)
      : bytes_(bytes), where_(where), name_(std::move(name)) {}

  // The next field; false at the end.
  bool next() {
    if (bytes_.empty()) return false;
    const uint64_t tag = varint();
    number_ = tag >> 3;
    wire_ = static_cast<int>(tag & 7);
    if (number_ == 0 || number_ > 0x1FFFFFFF) fail("has a bad field number");
    switch (wire_) {
      case 0:
        value_ = varint();
        break;
      case 1:
        data_ = take(8);
        break;
      case 2:
        data_ = take(varint());
        break;
      case 5:
        data_ = take(4);
        break;
      default:  // groups, which no version of the format has
        fail("has a field of a kind that is not known");
    }
    return true;
  }

  uint64_t number() const { return number_; }
  std::string_view bytes(const char* field) const {
    if (wire_ != 2) wrong(field, "bytes");
    return data_;
  }
  std::string text(const char* field) const {
    const std::string_view data = bytes(field);
    if (!is_valid_utf8(data)) wrong(field, "UTF-8");
    return std::string(data);
  }
  float real(const char* field) const {
    if (wire_ != 5) wrong(field, "a float");
    uint32_t bits = 0;
    for (int i = 3; i >= 0; --i) bits = bits << 8 | static_cast<unsigned char>(data_[i]);
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  int32_t integer(const char* field) const {
    if (wire_ != 0) wrong(field, "an integer");
    const auto value = static_cast<int64_t>(value_);
    if (value < INT32_MIN || value > INT32_MAX) wrong(field, "within 32 bits");
    return static_cast<int32_t>(value);
  }
  bool boolean(const char* field) const {
    if (wire_ != 0) wrong(field, "true or false");
    return value_ != 0;
  }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (bytes_.empty()) fail("ends within a number");
      const auto byte = static_cast<unsigned char>(bytes_[0]);
      bytes_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    fail("has a number of more than 64 bits");
  }
  std::string_view take(uint64_t count) {
    if (count > bytes_.size()) fail("ends within a field");
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  [[noreturn]] void fail(const char* reason) const {
    throw Error(ErrorCode::kInvalidInput, where_, "is no sentencepiece model: {} {}", name_,
                reason);
  }
  [[noreturn]] void wrong(const char* field, const char* kind) const {
    throw Error(ErrorCode::kInvalidInput, where_, "'{}.{}' is not {}", name_, field, kind);
  }

  std::string_view bytes_;
  const std::string& where_;
  const std::string name_;
  uint64_t number_ = 0;
  int wire_ = 0;
  uint64_t value_ = 0;
  std::string_view data_;
};

void read_piece(std::string_view bytes, const std::string& where, SentencePieceFile& file) {
  if (file.pieces.size() == kMostPieces) {
    throw Error(ErrorCode::kInvalidInput, where, "has more than {} pieces", kMostPieces);
  }
  SentencePiece piece;
  Message message(bytes, where, "pieces");
  while (message.next()) {
    if (message.number() == 1) piece.text = message.text("piece");
    if (message.number() == 2) piece.score = message.real("score");
    if (message.number() == 3) piece.kind = message.integer("type");
  }
  file.pieces.push_back(std::move(piece));
}

void read_trainer(std::string_view bytes, const std::string& where, SentencePieceFile& file) {
  Message message(bytes, where, "trainer_spec");
  while (message.next()) {
    switch (message.number()) {
      case 3:
        file.model = message.integer("model_type");
        break;
      case 24:
        file.treat_whitespace_as_suffix = message.boolean("treat_whitespace_as_suffix");
        break;
      case 35:
        file.byte_fallback = message.boolean("byte_fallback");
        break;
      case 40:
        file.unk_id = message.integer("unk_id");
        break;
      case 41:
        file.bos_id = message.integer("bos_id");
        break;
      case 42:
        file.eos_id = message.integer("eos_id");
        break;
      case 43:
        file.pad_id = message.integer("pad_id");
        break;
      default:  // how it was trained
        break;
    }
  }
}

void read_rules(std::string_view bytes, const std::string& where, SentencePieceFile& file) {
  Message message(bytes, where, "normalizer_spec");
  while (message.next()) {
    switch (message.number()) {
      case 1:
        file.normalizer = message.text("name");
        break;
      case 2:
        file.charsmap = message.bytes("precompiled_charsmap");
        break;
      case 3:
        file.add_dummy_prefix = message.boolean("add_dummy_prefix");
        break;
      case 4:
        file.remove_extra_whitespaces = message.boolean("remove_extra_whitespaces");
        break;
      case 5:
        file.escape_whitespaces = message.boolean("escape_whitespaces");
        break;
      default:  // the rules as text, which the table holds
        break;
    }
  }
}

}  // namespace

SentencePieceFile parse_sentencepiece(std::string_view bytes, const std::string& where) {
  SentencePieceFile file;
  Message message(bytes, where, "the message");
  while (message.next()) {
    if (message.number() == 1) read_piece(message.bytes("pieces"), where, file);
    if (message.number() == 2) read_trainer(message.bytes("trainer_spec"), where, file);
    if (message.number() == 3) read_rules(message.bytes("normalizer_spec"), where, file);
  }
  if (file.pieces.empty()) {
    throw Error(ErrorCode::kInvalidInput, where, "is no sentencepiece model: it has no pieces");
  }
  return file;
}

}  // namespace halftone
