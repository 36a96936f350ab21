// The template with which a tokenizer turns a conversation into text. It is written in Jinja, of
// which this is the part that such templates use for a single message: texts, if, for and set,
// with expressions on strings, numbers and lists. What goes beyond is an Error that names it, where
// the message would reach it.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace halftone {

class ChatTemplate {
 public:
  // `names` are what the template may use besides the message, such as bos_token. `where` names the
  // file in errors.
  ChatTemplate(const std::string& source, nlohmann::json names, std::string where);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Of a tokenizer's folder: chat_template.jinja, or "chat_template" in tokenizer_config.json.
  // Nothing where there is neither.
  static std::optional<ChatTemplate> load(const std::filesystem::path& folder);

  // One message, of a user, with the start of the answer to it. Templates that know of it may let
  // an answer begin with thoughts, or skip them.
  std::string render(const std::string& message, bool thinking = true) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace halftone
