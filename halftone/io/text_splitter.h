// Splits texts by a regular expression of Rust's or Oniguruma's kind, as tokenizer.json has them.
// Threads share one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace halftone {

class TextSplitter {
 public:
  // `field` is what held the pattern, for errors.
  TextSplitter(const std::string& pattern, std::string where, std::string field);
  TextSplitter(TextSplitter&&) noexcept;
  ~TextSplitter();

  // Calls piece(text, matched) for every match and for what lies between matches. Matches of
  // nothing are passed over.
  void split(std::string_view text, const std::function<void(std::string_view, bool)>& piece) const;

 private:
  struct Code;
  const std::string where_;
  const std::string field_;
  std::unique_ptr<Code> code_;
};

}  // namespace halftone
