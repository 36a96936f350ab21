#include "halftone/io/tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/io/json.h"
#include "halftone/io/tokenizer_parts.h"

namespace halftone {

void refuse_tokenizer(const std::string& where, const std::string& part) {
  throw Error(ErrorCode::kUnsupported, where, "{} is not one that is supported", part);
}

void Tokenizer::State::add_token(AddedToken token) {
  vocab_size = std::max(vocab_size, token.id + 1);
  added.add(std::move(token));
}

std::string Tokenizer::State::normalize(std::string_view text) const {
  // Many times what any real tokenizer makes of a text; a chain of steps could double it each time.
  const size_t most = 64 * text.size() + 1024;
  std::string result(text);
  for (const auto& step : normalizers) {
    result = step(result);
    if (result.size() > most) {
      throw Error(ErrorCode::kInvalidInput, where, "normalizer: {} bytes of text became {}",
                  text.size(), result.size());
    }
  }
  return result;
}

void Tokenizer::State::encode_plain(std::string_view text, bool first,
                                    std::vector<int32_t>& ids) const {
  std::vector<TextPiece> pieces = {{std::string(text), first}}, cut;
  for (const auto& splitter : splitters) {
    cut.clear();
    for (const TextPiece& piece : pieces) splitter(piece, cut);
    pieces.swap(cut);
  }
  for (const TextPiece& piece : pieces) model->encode(piece.text, ids);
}

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {
  state_->added.finish([this](const std::string& text) { return state_->normalize(text); });
}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  return parse(read_json_file(path), path.string());
}

Tokenizer Tokenizer::parse(const nlohmann::json& document, const std::string& where) {
  return Tokenizer(parse_tokenizer(document, where));
}

std::unique_ptr<Tokenizer::State> parse_tokenizer(const nlohmann::json& document,
                                                  const std::string& where) {
  auto state = std::make_unique<Tokenizer::State>();
  state->where = where;
  const ConfigReader file(document, where);
  read_token_model(file, where, *state);
  read_normalizer(file, where, *state);
  read_pre_tokenizer(file, where, *state);
  read_added_tokens(file, where, *state);
  read_template(file, where, *state);
  return state;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  if (!is_valid_utf8(text)) throw Error(ErrorCode::kInvalidInput, "text", "is not valid UTF-8");
  std::vector<int32_t> ids = state_->before;
  const auto add = [&](int32_t id) { ids.push_back(id); };
  state_->added.split(
      text, /*normalized=*/false,
      [&](std::string_view raw, size_t offset) {
        const std::string normalized = state_->normalize(raw);
        state_->added.split(
            normalized, /*normalized=*/true,
            [&](std::string_view plain, size_t inner) {
              state_->encode_plain(plain, offset == 0 && inner == 0, ids);
            },
            add);
      },
      add);
  ids.insert(ids.end(), state_->after.begin(), state_->after.end());
  return ids;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, size_t length) const {
  const size_t around = state_->before.size() + state_->after.size();
  if (length < around) {
    throw Error(ErrorCode::kInvalidInput, state_->where,
                "{} tokens are too few for the {} around a text", length, around);
  }
  std::vector<int32_t> ids = encode(text);
  if (ids.size() > length) {
    ids.resize(length);
    std::copy(state_->after.begin(), state_->after.end(),
              ids.end() - static_cast<std::ptrdiff_t>(state_->after.size()));
  }
  if (ids.size() < length) {
    if (!state_->pad) {
      throw Error(ErrorCode::kInvalidInput, state_->where, "names no token that fills texts up");
    }
    ids.resize(length, *state_->pad);
  }
  return ids;
}

std::optional<int32_t> Tokenizer::find(std::string_view token) const {
  return state_->added.find(token);
}
int32_t Tokenizer::vocab_size() const { return state_->vocab_size; }
std::optional<int32_t> Tokenizer::pad() const { return state_->pad; }
std::optional<int64_t> Tokenizer::max_length() const { return state_->max_length; }

}  // namespace halftone
