// Stands in for tokenizer.cpp in builds without PCRE2 and utf8proc: loading one says so.
#include <nlohmann/json.hpp>

#include "halftone/base/error.h"
#include "halftone/io/tokenizer.h"

namespace halftone {

struct Tokenizer::State {};

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::filesystem::path& path) { return parse({}, path.string()); }

Tokenizer Tokenizer::parse(const nlohmann::json&, const std::string& where) {
  throw Error(ErrorCode::kUnsupported, where,
              "this build cannot read prompts: it was made without PCRE2 and utf8proc");
}

std::vector<int32_t> Tokenizer::encode(std::string_view) const { return {}; }
std::vector<int32_t> Tokenizer::encode(std::string_view, size_t) const { return {}; }
std::optional<int32_t> Tokenizer::find(std::string_view) const { return std::nullopt; }
int32_t Tokenizer::vocab_size() const { return 0; }
std::optional<int32_t> Tokenizer::pad() const { return std::nullopt; }
std::optional<int64_t> Tokenizer::max_length() const { return std::nullopt; }

Tokenizer load_tokenizer(const std::filesystem::path& folder) { return Tokenizer::load(folder); }

}  // namespace halftone
