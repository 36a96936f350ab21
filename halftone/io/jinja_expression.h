// Expressions of chat templates: parsed once, evaluated where they are reached.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace halftone::jinja {

// Null is None; what a name that nobody defined gives is `undefined()`.
using Value = nlohmann::json;
Value undefined();
bool is_true(const Value& value);

// Called with what is wrong; throws.
using Fail = std::function<void(const std::string& reason)>;

struct Expression {
  enum class Kind {
    kLiteral,
    kName,
    kList,
    kAttribute,
    kIndex,
    kSlice,
    kCall,
    kFilter,
    kTest,
    kNot,
    kMinus,
    kBinary,
    kAnd,
    kOr,
    kChoice
  };
  Kind kind = Kind::kLiteral;
  std::string text;  // a name, or an operator
  Value value;       // of a literal
  std::vector<Expression> operands;
  std::vector<std::string> keywords;  // of a call's operands after the first; empty: by position
};

// What a tag holds, such as "message.role == 'user'".
Expression parse(std::string_view text, const Fail& fail);

// Names are looked up by `find`, which gives undefined() for those that it does not know.
using Find = std::function<Value(const std::string& name)>;
Value evaluate(const Expression& expression, const Find& find, const Fail& fail);

// As a template prints it.
std::string printed(const Value& value, const Fail& fail);

}  // namespace halftone::jinja
