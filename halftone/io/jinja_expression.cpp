#include "halftone/io/jinja_expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "halftone/base/error.h"

namespace halftone::jinja {
namespace {

using Kind = Expression::Kind;

constexpr size_t kMostText = 1 << 20;
constexpr int kMostDepth = 64;
constexpr size_t kMostTokens = 1000;

struct Token {
  enum class Kind { kEnd, kName, kString, kNumber, kOperator } kind = Kind::kEnd;
  std::string text;
};

std::vector<Token> tokens_of(std::string_view text, const Fail& fail) {
  std::vector<Token> tokens;
  const auto is_name = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    size_t end = i + 1;
    if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      i = end;
      continue;
    }
    if (c == '\'' || c == '"') {
      std::string value;
      for (; end < text.size() && text[end] != c; ++end) {
        if (text[end] != '\\' || end + 1 == text.size()) {
          value += text[end];
          continue;
        }
        const char escaped = text[++end];
        const size_t known = std::string_view("nrt\\'\"").find(escaped);
        if (known == std::string_view::npos)
          fail(fmt::format("has an unknown escape '\\{}'", escaped));
        value += "\n\r\t\\'\""[known];
      }
      if (end >= text.size()) fail("has a string without an end");
      tokens.push_back({Token::Kind::kString, value});
      i = end + 1;
      continue;
    }
    if (is_name(c)) {
      while (end < text.size() && is_name(text[end])) ++end;
      const bool number = std::isdigit(static_cast<unsigned char>(c)) != 0;
      tokens.push_back({number ? Token::Kind::kNumber : Token::Kind::kName,
                        std::string(text.substr(i, end - i))});
    } else {
      const std::string_view two = text.substr(i, 2);
      if (two == "==" || two == "!=" || two == "<=" || two == ">=") end = i + 2;
      tokens.push_back({Token::Kind::kOperator, std::string(text.substr(i, end - i))});
    }
    i = end;
  }
  // What is chained, such as a + b + c, is nested as deep as it is long.
  if (tokens.size() > kMostTokens) fail("has too long an expression");
  tokens.push_back({});
  return tokens;
}

class Parser {
 public:
  Parser(std::string_view text, const Fail& fail) : tokens_(tokens_of(text, fail)), fail_(fail) {}

  Expression parse() {
    Expression whole = choice();
    if (peek().kind != Token::Kind::kEnd) unexpected();
    return whole;
  }

 private:
  // a if b else c
  Expression choice() {
    const Deeper deeper(*this);
    Expression value = either();
    if (!take_name("if")) return value;
    Expression condition = either();
    Expression otherwise{Kind::kLiteral, "", undefined(), {}, {}};
    if (take_name("else")) otherwise = choice();
    return node(Kind::kChoice, "", {std::move(condition), std::move(value), std::move(otherwise)});
  }
  Expression either() {
    Expression left = both();
    while (take_name("or")) left = node(Kind::kOr, "", {std::move(left), both()});
    return left;
  }
  Expression both() {
    Expression left = negation();
    while (take_name("and")) left = node(Kind::kAnd, "", {std::move(left), negation()});
    return left;
  }
  Expression negation() {
    const Deeper deeper(*this);
    if (take_name("not")) return node(Kind::kNot, "", {negation()});
    return comparison();
  }
  Expression comparison() {
    Expression left = sum();
    for (;;) {
      std::string name = peek().text;
      const bool symbol =
          peek().kind == Token::Kind::kOperator && (name == "==" || name == "!=" || name == "<" ||
                                                    name == ">" || name == "<=" || name == ">=");
      const bool word = peek().kind == Token::Kind::kName && name == "in";
      const bool inverse = is_name("not") && tokens_[at_ + 1].text == "in";
      if (!symbol && !word && !inverse) return left;
      at_ += inverse ? 2 : 1;
      left = node(Kind::kBinary, inverse ? "in" : name, {std::move(left), sum()});
      if (inverse) left = node(Kind::kNot, "", {std::move(left)});
    }
  }
  Expression sum() {
    Expression left = unary();
    while (is_operator("+") || is_operator("-") || is_operator("~")) {
      const std::string name = tokens_[at_++].text;
      left = node(Kind::kBinary, name, {std::move(left), unary()});
    }
    return left;
  }
  Expression unary() {
    const Deeper deeper(*this);
    if (take("-")) return node(Kind::kMinus, "", {unary()});
    return filtered(postfix(primary()));
  }
  Expression primary() {
    const Token token = tokens_[at_];
    if (token.kind != Token::Kind::kEnd) ++at_;
    if (token.kind == Token::Kind::kString) return literal(token.text);
    if (token.kind == Token::Kind::kNumber) {
      if (token.text.size() > 9 ||
          token.text.find_first_not_of("0123456789") != std::string::npos) {
        fail_(fmt::format("has a number '{}' that is not supported", printable(token.text)));
      }
      return literal(std::strtoll(token.text.c_str(), nullptr, 10));
    }
    if (token.kind == Token::Kind::kName) {
      if (token.text == "true" || token.text == "True") return literal(true);
      if (token.text == "false" || token.text == "False") return literal(false);
      if (token.text == "none" || token.text == "None") return literal(nullptr);
      return node(Kind::kName, token.text, {});
    }
    if (token.text == "(") {
      Expression inner = choice();
      expect(")");
      return inner;
    }
    if (token.text == "[") {
      Expression list = node(Kind::kList, "", {});
      while (!take("]")) {
        list.operands.push_back(choice());
        if (!is_operator("]")) expect(",");
      }
      return list;
    }
    if (token.kind != Token::Kind::kEnd) --at_;
    unexpected();
    return {};
  }
  Expression postfix(Expression x) {
    for (;;) {
      if (take(".")) {
        if (peek().kind != Token::Kind::kName) unexpected();
        x = node(Kind::kAttribute, tokens_[at_++].text, {std::move(x)});
      } else if (take("[")) {
        x = index(std::move(x));
      } else if (take("(")) {
        x = call(node(Kind::kCall, "", {std::move(x)}));
      } else {
        return x;
      }
    }
  }
  // x[i], or x[a:b:c], in which each may be missing.
  Expression index(Expression x) {
    std::vector<Expression> parts;
    bool slice = false;
    do {
      const bool missing = is_operator(":") || is_operator("]");
      parts.push_back(missing ? literal(nullptr) : choice());
      if (!is_operator(":")) break;
      slice = true;
    } while (take(":"));
    expect("]");
    if (!slice) return node(Kind::kIndex, "", {std::move(x), std::move(parts[0])});
    if (parts.size() > 3) unexpected();
    parts.insert(parts.begin(), std::move(x));
    while (parts.size() < 4) parts.push_back(literal(nullptr));
    return node(Kind::kSlice, "", std::move(parts));
  }
  // Arguments up to the bracket, onto a call or a filter.
  Expression call(Expression x) {
    while (!take(")")) {
      const bool keyword = peek().kind == Token::Kind::kName && tokens_[at_ + 1].text == "=" &&
                           tokens_[at_ + 1].kind == Token::Kind::kOperator;
      x.keywords.push_back(keyword ? peek().text : "");
      if (keyword) at_ += 2;
      x.operands.push_back(choice());
      if (!is_operator(")")) expect(",");
    }
    return x;
  }
  Expression filtered(Expression x) {
    for (;;) {
      if (take("|")) {
        if (peek().kind != Token::Kind::kName) unexpected();
        x = node(Kind::kFilter, tokens_[at_++].text, {std::move(x)});
        if (take("(")) x = call(std::move(x));
      } else if (take_name("is")) {
        const bool inverse = take_name("not");
        if (peek().kind != Token::Kind::kName) unexpected();
        x = node(Kind::kTest, tokens_[at_++].text, {std::move(x)});
        if (inverse) x = node(Kind::kNot, "", {std::move(x)});
      } else {
        return x;
      }
    }
  }

  static Expression node(Kind kind, std::string text, std::vector<Expression> operands) {
    return {kind, std::move(text), nullptr, std::move(operands), {}};
  }
  static Expression literal(Value value) { return {Kind::kLiteral, "", std::move(value), {}, {}}; }

  const Token& peek() const { return tokens_[at_]; }
  bool is_operator(const char* text) const {
    return peek().kind == Token::Kind::kOperator && peek().text == text;
  }
  bool is_name(const char* text) const {
    return peek().kind == Token::Kind::kName && peek().text == text;
  }
  bool take(const char* text) { return is_operator(text) && ++at_ > 0; }
  bool take_name(const char* text) { return is_name(text) && ++at_ > 0; }
  void expect(const char* text) {
    if (!take(text)) unexpected();
  }
  void unexpected() const {
    fail_(peek().kind == Token::Kind::kEnd
              ? "ends too early"
              : fmt::format("has '{}' where it is not understood", printable(peek().text)));
  }

  class Deeper {
   public:
    explicit Deeper(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kMostDepth) parser_.fail_("is nested too deep");
    }
    ~Deeper() { --parser_.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    Parser& parser_;
  };

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  const Fail& fail_;
};

class Evaluator {
 public:
  Evaluator(const Find& find, const Fail& fail) : find_(find), fail_(fail) {}

  Value operator()(const Expression& e) const {
    const auto operand = [&](size_t i) { return (*this)(e.operands[i]); };
    switch (e.kind) {
      case Kind::kLiteral:
        return e.value;
      case Kind::kName:
        return find_(e.text);
      case Kind::kList: {
        Value list = Value::array();
        for (const Expression& item : e.operands) {
          list.push_back((*this)(item));
          if (list.back().is_structured()) unsupported("list", "of lists");
        }
        return list;
      }
      case Kind::kAttribute:
        return attribute(operand(0), e.text);
      case Kind::kIndex:
        return index(operand(0), operand(1));
      case Kind::kSlice:
        return slice(operand(0), operand(1), operand(2), operand(3));
      case Kind::kCall:
        return call(e);
      case Kind::kFilter:
        return filter(e, operand(0));
      case Kind::kTest:
        return test(operand(0), e.text);
      case Kind::kNot:
        return !is_true(operand(0));
      case Kind::kMinus:
        return difference(0, operand(0));
      case Kind::kBinary:
        return binary(e.text, operand(0), operand(1));
      case Kind::kAnd: {
        const Value left = operand(0);
        return is_true(left) ? operand(1) : left;
      }
      case Kind::kOr: {
        const Value left = operand(0);
        return is_true(left) ? left : operand(1);
      }
      case Kind::kChoice:
        return is_true(operand(0)) ? operand(1) : operand(2);
    }
    return undefined();
  }

 private:
  Value attribute(const Value& x, const std::string& name) const {
    if (x.is_discarded())
      fail_(fmt::format("asks for '{}' of what is not defined", printable(name)));
    if (x.is_object() && x.contains(name)) return x[name];
    if (!x.is_object()) unsupported("attribute", name);
    return undefined();
  }
  Value index(const Value& x, const Value& i) const {
    if (i.is_string()) return attribute(x, i.get<std::string>());
    if (!x.is_array() || !i.is_number_integer()) unsupported("index", "of what is no list");
    const auto count = static_cast<int64_t>(x.size());
    const int64_t at = i.get<int64_t>() + (i.get<int64_t>() < 0 ? count : 0);
    return at >= 0 && at < count ? x[static_cast<size_t>(at)] : undefined();
  }
  Value slice(const Value& x, const Value& begin, const Value& end, const Value& step) const {
    if (!x.is_array()) unsupported("slice", "of what is no list");
    if (step == -1 && begin.is_null() && end.is_null()) {
      return Value::array_t(x.rbegin(), x.rend());
    }
    if (!step.is_null() && step != 1) unsupported("slice", "with this step");
    const auto count = static_cast<int64_t>(x.size());
    const auto place = [&](const Value& v, int64_t usual) {
      if (v.is_null()) return usual;
      if (!v.is_number_integer()) unsupported("slice", "by what is no number");
      const auto at = v.get<int64_t>();
      return std::clamp<int64_t>(at < 0 ? at + count : at, 0, count);
    };
    const int64_t first = place(begin, 0), last = std::max(first, place(end, count));
    return Value::array_t(x.begin() + first, x.begin() + last);
  }

  Value call(const Expression& e) const {
    const Expression& function = e.operands[0];
    if (function.kind == Kind::kName && function.text == "namespace") {
      Value object = Value::object();
      for (size_t i = 1; i < e.operands.size(); ++i) {
        if (e.keywords[i - 1].empty()) unsupported("function", "namespace with a value of no name");
        Value& value = object[e.keywords[i - 1]] = (*this)(e.operands[i]);
        if (value.is_object()) unsupported("function", "namespace with an object inside");
      }
      return object;
    }
    if (function.kind == Kind::kName && function.text == "raise_exception") {
      fail_(fmt::format("refuses the message: {}",
                        e.operands.size() == 2 ? printable(text((*this)(e.operands[1]))) : ""));
    }
    if (function.kind != Kind::kAttribute) unsupported("function", function.text);
    const Value self = (*this)(function.operands[0]);
    if (!self.is_string()) unsupported("method", function.text);
    return method(self.get<std::string>(), function.text, e);
  }
  Value method(const std::string& self, const std::string& name, const Expression& e) const {
    const size_t count = e.operands.size() - 1;
    if (count == 1 && (name == "startswith" || name == "endswith")) {
      const std::string part = text((*this)(e.operands[1]));
      return name == "startswith" ? self.starts_with(part) : self.ends_with(part);
    }
    const bool left = name == "strip" || name == "lstrip",
               right = name == "strip" || name == "rstrip";
    if ((!left && !right) || count > 1) unsupported("method", name);
    const std::string characters =
        count == 1 ? text((*this)(e.operands[1])) : std::string(" \t\n\r\f\v");
    return stripped(self, characters, left, right);
  }
  static std::string stripped(std::string_view x, const std::string& characters, bool left,
                              bool right) {
    const size_t first = left ? x.find_first_not_of(characters) : 0;
    if (first == std::string_view::npos) return "";
    const size_t last = right ? x.find_last_not_of(characters) + 1 : x.size();
    return std::string(x.substr(first, std::max(first, last) - first));
  }

  Value filter(const Expression& e, const Value& x) const {
    if (e.text == "default" && e.operands.size() == 2) {
      return x.is_discarded() ? (*this)(e.operands[1]) : x;
    }
    if (e.operands.size() > 1) unsupported("filter", e.text);
    if ((e.text == "length" || e.text == "count") && x.is_structured()) return x.size();
    if (e.text == "trim" && x.is_string()) {
      return stripped(x.get<std::string>(), " \t\n\r\f\v", true, true);
    }
    unsupported("filter", e.text);
    return {};
  }
  Value test(const Value& x, const std::string& name) const {
    if (name == "defined") return !x.is_discarded();
    if (name == "undefined") return x.is_discarded();
    if (name == "none") return x.is_null();
    if (name == "string") return x.is_string();
    if (name == "true") return x == true;
    if (name == "false") return x == false;
    if (name == "boolean") return x.is_boolean();
    if (name == "number" || name == "integer") return x.is_number();
    if (name == "mapping") return x.is_object();
    if (name == "iterable" || name == "sequence") return x.is_structured() || x.is_string();
    unsupported("test", name);
    return {};
  }

  Value binary(const std::string& name, const Value& a, const Value& b) const {
    if (name == "==") return equal(a, b);
    if (name == "!=") return !equal(a, b);
    if (name == "in") return contains(b, a);
    if (name == "~") return joined(printed(a, fail_), printed(b, fail_));
    if (name == "-") return difference(a, b);
    if (name == "+" && a.is_string() && b.is_string()) return joined(text(a), text(b));
    if (a.is_discarded() || b.is_discarded())
      fail_(fmt::format("'{}' of what is not defined", name));
    if (!a.is_number_integer() || !b.is_number_integer()) unsupported("operator", name);
    const auto x = a.get<int64_t>(), y = b.get<int64_t>();
    if (name == "+") {
      int64_t result = 0;
      if (__builtin_add_overflow(x, y, &result)) fail_("counts too far");
      return result;
    }
    if (name == "<") return x < y;
    if (name == ">") return x > y;
    return name == "<=" ? x <= y : x >= y;
  }
  // Two that are not defined are equal.
  static bool equal(const Value& a, const Value& b) {
    return a.is_discarded() || b.is_discarded() ? a.is_discarded() && b.is_discarded() : a == b;
  }
  bool contains(const Value& x, const Value& part) const {
    if (x.is_string() && part.is_string()) return text(x).find(text(part)) != std::string::npos;
    if (x.is_object() && part.is_string()) return x.contains(text(part));
    if (!x.is_array()) unsupported("operator", "in");
    return std::find(x.begin(), x.end(), part) != x.end();
  }
  Value difference(const Value& a, const Value& b) const {
    if (!a.is_number_integer() || !b.is_number_integer()) unsupported("operator", "-");
    int64_t result = 0;
    if (__builtin_sub_overflow(a.get<int64_t>(), b.get<int64_t>(), &result))
      fail_("counts too far");
    return result;
  }
  Value joined(const std::string& a, const std::string& b) const {
    if (a.size() + b.size() > kMostText) fail_("makes too long a text");
    return a + b;
  }
  std::string text(const Value& x) const {
    if (!x.is_string()) fail_("has something else where a text must be");
    return x.get<std::string>();
  }
  void unsupported(const char* what, const std::string& name) const {
    fail_(fmt::format("uses the {} '{}', which is not supported", what, printable(name)));
  }

  const Find& find_;
  const Fail& fail_;
};

}  // namespace

Value undefined() { return Value(Value::value_t::discarded); }

bool is_true(const Value& x) {
  if (x.is_discarded() || x.is_null()) return false;
  if (x.is_boolean()) return x.get<bool>();
  if (x.is_number_integer()) return x != 0;
  return x.is_string() ? !x.get_ref<const std::string&>().empty() : !x.empty();
}

Expression parse(std::string_view text, const Fail& fail) { return Parser(text, fail).parse(); }

Value evaluate(const Expression& expression, const Find& find, const Fail& fail) {
  return Evaluator(find, fail)(expression);
}

std::string printed(const Value& x, const Fail& fail) {
  if (x.is_discarded()) return "";
  if (x.is_string()) return x.get<std::string>();
  if (x.is_boolean()) return x.get<bool>() ? "True" : "False";
  if (x.is_null()) return "None";
  if (!x.is_number_integer()) fail("prints a list or an object, which is not supported");
  return std::to_string(x.get<int64_t>());
}

}  // namespace halftone::jinja
