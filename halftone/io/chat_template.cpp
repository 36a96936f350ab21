#include "halftone/io/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "halftone/base/error.h"
#include "halftone/base/files.h"
#include "halftone/io/jinja_expression.h"
#include "halftone/io/json.h"
#include "halftone/tensor/storage.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using jinja::Expression;
using jinja::Fail;
using jinja::Value;
using nlohmann::json;

constexpr size_t kMostText = 1 << 20;
constexpr int kMostDepth = 32;
constexpr int kMostRounds = 10000;

// ---- pieces ---------------------------------------------------------------------------------

struct Piece {
  enum class Kind { kText, kPrint, kStatement } kind;
  std::string text;
};

constexpr std::string_view kSpaces = " \t\n\r\f\v";

// Cuts a template at its tags, with the white space around them as transformers sets it: lines that
// hold nothing but a statement leave nothing (trim_blocks, lstrip_blocks).
class Cutter {
 public:
  Cutter(const std::string& source, const Fail& fail) : rest_(source), fail_(fail) {
    if (rest_.ends_with('\n')) rest_.remove_suffix(1);
  }

  std::vector<Piece> cut() {
    while (!rest_.empty()) {
      const size_t start = next_tag();
      std::string text(rest_.substr(0, start));
      rest_.remove_prefix(std::min(start, rest_.size()));
      if (!rest_.empty()) {
        const char mark = rest_.size() > 2 ? rest_[2] : ' ';
        if (mark == '-') {
          text.resize(text.find_last_not_of(kSpaces) + 1);
        } else if (rest_[1] != '{' && mark != '+') {
          strip_indent(text);
        }
      }
      if (!text.empty()) pieces_.push_back({Piece::Kind::kText, std::move(text)});
      if (!rest_.empty()) take_tag();
    }
    return std::move(pieces_);
  }

 private:
  size_t next_tag() const {
    for (size_t at = rest_.find('{'); at < rest_.size(); at = rest_.find('{', at + 1)) {
      const char c = at + 1 < rest_.size() ? rest_[at + 1] : ' ';
      if (c == '{' || c == '%' || c == '#') return at;
    }
    return std::string_view::npos;
  }

  // What stands before a statement alone on its line.
  void strip_indent(std::string& text) const {
    const size_t line = text.rfind('\n') + 1;  // 0 where there is none
    if (line == 0 && !at_line_start_) return;
    if (text.find_first_not_of(" \t", line) == std::string::npos) text.resize(line);
  }

  void take_tag() {
    const char kind = rest_[1];
    const std::string end = kind == '#' ? "#}" : kind == '%' ? "%}" : "}}";
    const size_t stop = kind == '#' ? rest_.find(end, 2) : end_of_code(end);
    if (stop == std::string_view::npos) fail_(fmt::format("has a tag without its '{}'", end));
    std::string_view inside = rest_.substr(2, stop - 2);
    rest_.remove_prefix(stop + 2);
    if (inside.starts_with('-') || inside.starts_with('+')) inside.remove_prefix(1);
    at_line_start_ = false;
    if (inside.ends_with('-')) {
      inside.remove_suffix(1);
      const size_t count = std::min(rest_.find_first_not_of(kSpaces), rest_.size());
      at_line_start_ = count > 0 && rest_[count - 1] == '\n';
      rest_.remove_prefix(count);
    } else if (inside.ends_with('+')) {
      inside.remove_suffix(1);
    } else if (kind != '{' && rest_.starts_with('\n')) {
      rest_.remove_prefix(1);
      at_line_start_ = true;
    }
    if (kind != '#') {
      pieces_.push_back(
          {kind == '{' ? Piece::Kind::kPrint : Piece::Kind::kStatement, std::string(inside)});
    }
  }

  // Where a tag ends that may hold strings.
  size_t end_of_code(const std::string& end) const {
    char quote = 0;
    for (size_t i = 2; i < rest_.size(); ++i) {
      const char c = rest_[i];
      if (quote != 0) {
        if (c == '\\') ++i;
        if (c == quote) quote = 0;
      } else if (c == '\'' || c == '"') {
        quote = c;
      } else if (rest_.substr(i, 2) == end) {
        return i;
      }
    }
    return std::string_view::npos;
  }

  std::string_view rest_;
  bool at_line_start_ = true;
  std::vector<Piece> pieces_;
  const Fail& fail_;
};

// ---- statements -----------------------------------------------------------------------------

struct Statement {
  enum class Kind { kText, kPrint, kIf, kFor, kSet } kind = Kind::kText;
  std::string text;       // a text; the variable of for and set
  std::string attribute;  // of a namespace that set changes
  // Of if: each branch's condition, else being one that is true.
  std::vector<Expression> expressions;
  std::vector<std::vector<Statement>> bodies;
};
using Body = std::vector<Statement>;

class Parser {
 public:
  Parser(std::vector<Piece> pieces, const Fail& fail) : pieces_(std::move(pieces)), fail_(fail) {}

  Body parse() {
    Body all = body();
    if (at_ < pieces_.size()) fail_(fmt::format("has '{}' too often", printable(word())));
    return all;
  }

 private:
  // Up to a statement that ends one, such as endif.
  Body body() {
    if (++depth_ > kMostDepth) fail_("is nested too deep");
    Body out;
    for (; at_ < pieces_.size(); ++at_) {
      const Piece& piece = pieces_[at_];
      if (piece.kind == Piece::Kind::kText) {
        out.push_back({Statement::Kind::kText, piece.text, "", {}, {}});
      } else if (piece.kind == Piece::Kind::kPrint) {
        out.push_back({Statement::Kind::kPrint, "", "", {jinja::parse(piece.text, fail_)}, {}});
      } else if (word() == "if") {
        out.push_back(branches());
      } else if (word() == "for") {
        out.push_back(loop());
      } else if (word() == "set") {
        out.push_back(assignment());
      } else if (word().starts_with("e")) {  // elif, else, endif, endfor
        break;
      } else {
        fail_(fmt::format("uses the statement '{}', which is not supported", printable(word())));
      }
    }
    --depth_;
    return out;
  }

  Statement branches() {
    Statement s{Statement::Kind::kIf, "", "", {}, {}};
    std::string kind = "if";
    while (kind == "if" || kind == "elif" || kind == "else") {
      s.expressions.push_back(kind == "else"
                                  ? Expression{Expression::Kind::kLiteral, "", true, {}, {}}
                                  : jinja::parse(after_word(), fail_));
      const bool last = kind == "else";
      s.bodies.push_back(next_body());
      kind = word();
      if (last) break;
    }
    if (kind != "endif") fail_(fmt::format("has '{}' instead of 'endif'", printable(kind)));
    return s;
  }
  Statement loop() {
    const std::string head(after_word());
    const size_t in = head.find(" in ");
    if (in == std::string::npos) fail_("has a 'for' without 'in'");
    Statement s{Statement::Kind::kFor, name_in(head.substr(0, in)), "", {}, {}};
    s.expressions.push_back(jinja::parse(std::string_view(head).substr(in + 4), fail_));
    s.bodies.push_back(next_body());
    if (word() != "endfor") fail_(fmt::format("has '{}' instead of 'endfor'", printable(word())));
    return s;
  }
  Statement assignment() {
    const std::string text(after_word());
    const size_t equals = text.find('=');
    if (equals == std::string::npos) fail_("has a 'set' without '='");
    std::string name = text.substr(0, equals), attribute;
    if (const size_t dot = name.find('.'); dot != std::string::npos) {
      attribute = name_in(name.substr(dot + 1));
      name.resize(dot);
    }
    return {Statement::Kind::kSet,
            name_in(name),
            attribute,
            {jinja::parse(std::string_view(text).substr(equals + 1), fail_)},
            {}};
  }

  Body next_body() {
    ++at_;
    Body out = body();
    if (at_ >= pieces_.size()) fail_("ends inside of an 'if' or a 'for'");
    return out;
  }
  std::string name_in(const std::string& text) const {
    const size_t first = text.find_first_not_of(kSpaces), last = text.find_last_not_of(kSpaces);
    const std::string name = first == std::string::npos ? "" : text.substr(first, last - first + 1);
    const bool valid = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '_';
    });
    if (!valid) fail_(fmt::format("has '{}' where one name must be", printable(name)));
    return name;
  }
  std::string word() const {
    const std::string& text = pieces_[at_].text;
    const size_t first = text.find_first_not_of(kSpaces);
    if (first == std::string::npos) return "";
    size_t end = first;
    while (end < text.size() && std::isalpha(static_cast<unsigned char>(text[end])) != 0) ++end;
    return text.substr(first, end - first);
  }
  std::string_view after_word() const {
    const std::string_view text = pieces_[at_].text;
    return text.substr(text.find_first_not_of(kSpaces) + word().size());
  }

  const std::vector<Piece> pieces_;
  size_t at_ = 0;
  int depth_ = 0;
  const Fail& fail_;
};

// ---- running --------------------------------------------------------------------------------

class Renderer {
 public:
  Renderer(const json& names, const Fail& fail) : scopes_{{}}, fail_(fail) {
    for (const auto& [name, value] : names.items()) scopes_[0][name] = value;
  }

  std::string render(const Body& body) {
    run(body);
    return std::move(out_);
  }

 private:
  void run(const Body& body) {
    for (const Statement& s : body) {
      switch (s.kind) {
        case Statement::Kind::kText:
          print(s.text);
          break;
        case Statement::Kind::kPrint:
          print(jinja::printed(value(s.expressions[0]), fail_));
          break;
        case Statement::Kind::kSet:
          assign(s);
          break;
        case Statement::Kind::kFor:
          repeat(s);
          break;
        case Statement::Kind::kIf:
          for (size_t i = 0; i < s.bodies.size(); ++i) {
            if (!jinja::is_true(value(s.expressions[i]))) continue;
            run(s.bodies[i]);
            break;
          }
          break;
      }
    }
  }
  // What is set inside of a loop is gone after each round.
  void repeat(const Statement& s) {
    const Value list = value(s.expressions[0]);
    if (list.is_discarded()) fail_("loops over what is not defined");
    if (!list.is_array()) fail_("loops over what is no list, which is not supported");
    for (size_t i = 0; i < list.size(); ++i) {
      if (++rounds_ > kMostRounds) fail_("loops too often");
      scopes_.push_back({{s.text, list[i]},
                         {"loop",
                          {{"index", i + 1},
                           {"index0", i},
                           {"first", i == 0},
                           {"last", i + 1 == list.size()},
                           {"length", list.size()}}}});
      run(s.bodies[0]);
      scopes_.pop_back();
    }
  }
  void assign(const Statement& s) {
    Value fresh = value(s.expressions[0]);
    if (s.attribute.empty()) {
      scopes_.back()[s.text] = std::move(fresh);
      return;
    }
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      const auto found = scope->find(s.text);
      if (found == scope->end()) continue;
      // An object in an object could grow without end.
      if (!found->second.is_object() || fresh.is_object()) break;
      found->second[s.attribute] = std::move(fresh);
      return;
    }
    fail_(
        fmt::format("sets '{}' of what is no namespace, or to an object", printable(s.attribute)));
  }
  Value value(const Expression& expression) const {
    const auto find = [&](const std::string& name) {
      for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
        if (const auto found = scope->find(name); found != scope->end()) return found->second;
      }
      return jinja::undefined();
    };
    return jinja::evaluate(expression, find, fail_);
  }
  void print(const std::string& text) {
    if (out_.size() + text.size() > kMostText) fail_("makes too long a text");
    out_ += text;
  }

  std::vector<std::map<std::string, Value>> scopes_;  // the innermost last
  std::string out_;
  int rounds_ = 0;
  const Fail& fail_;
};

// A special token as tokenizer_config.json has it: its text, or an object around that.
json special_tokens(const json& config) {
  json tokens = json::object();
  for (const auto& [name, value] : config.items()) {
    if (!name.ends_with("_token")) continue;
    const json& text = value.is_object() ? value.value("content", json()) : value;
    if (text.is_string()) tokens[name] = text;
  }
  return tokens;
}

// With the ends of lines that Jinja reads them as.
std::string with_plain_newlines(const std::string& source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') out += source[i];
    if (source[i] == '\r' && (i + 1 == source.size() || source[i + 1] != '\n')) out += '\n';
  }
  return out;
}

// The one that is used where there are several by name.
std::string default_template(const json& field, const std::string& where) {
  if (field.is_string()) return field.get<std::string>();
  if (field.is_array()) {
    for (const json& entry : field) {
      if (!entry.is_object() || entry.value("name", json()) != "default") continue;
      const json text = entry.value("template", json());
      if (text.is_string()) return text.get<std::string>();
    }
  }
  throw Error(ErrorCode::kInvalidInput, where,
              "'chat_template' is neither a text nor a list with one that is named default");
}

}  // namespace

struct ChatTemplate::State {
  Body body;
  json names;
  Fail fail;
};

ChatTemplate::ChatTemplate(const std::string& source, json names, std::string where)
    : state_(std::make_unique<State>()) {
  state_->names = std::move(names);
  state_->fail = [where = std::move(where)](const std::string& reason) {
    throw Error(ErrorCode::kUnsupported, where, "'chat_template' {}", reason);
  };
  if (source.size() > kMostText) state_->fail("is too long");
  const std::string plain = with_plain_newlines(source);
  state_->body = Parser(Cutter(plain, state_->fail).cut(), state_->fail).parse();
}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

std::optional<ChatTemplate> ChatTemplate::load(const fs::path& folder) {
  const fs::path file = folder / "chat_template.jinja", config = folder / "tokenizer_config.json";
  const json settings = path_exists(config) ? read_json_file(config) : json::object();
  if (!settings.is_object()) {
    throw Error(ErrorCode::kInvalidInput, config.string(), "is not a JSON object");
  }
  if (path_exists(file)) {
    const auto storage = Storage::map_file(file);
    const auto bytes = storage->bytes();
    const std::string source(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return ChatTemplate(source, special_tokens(settings), file.string());
  }
  const json field = settings.value("chat_template", json());
  if (field.is_null()) return std::nullopt;
  return ChatTemplate(default_template(field, config.string()), special_tokens(settings),
                      config.string());
}

std::string ChatTemplate::render(const std::string& message, bool thinking) const {
  json names = state_->names;
  names["messages"] = json::array({json::object({{"role", "user"}, {"content", message}})});
  names["add_generation_prompt"] = true;
  names["enable_thinking"] = thinking;
  names["tools"] = nullptr;
  names["documents"] = nullptr;
  return Renderer(names, state_->fail).render(state_->body);
}

}  // namespace halftone
