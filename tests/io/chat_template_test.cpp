// Chat templates against transformers, and those that go beyond what is supported.
#include "halftone/io/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halftone/io/json.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace halftone {
namespace {

using nlohmann::json;
using test::error_of;
using testing::HasSubstr;

TEST(ChatTemplates, RenderAsTransformersDoes) {
  const json fixture = read_json_file(std::filesystem::path(HALFTONE_TEST_DATA) / "tokenizer" /
                                      "chat_templates.json");
  ASSERT_GE(fixture["cases"].size(), 10u);
  for (const json& c : fixture["cases"]) {
    const ChatTemplate chat(c["template"], fixture["names"], "t");
    for (size_t i = 0; i < fixture["messages"].size(); ++i) {
      EXPECT_EQ(chat.render(fixture["messages"][i]), c["texts"][i].get<std::string>())
          << c["name"] << " " << i;
    }
  }
}

TEST(ChatTemplates, WhatIsNotSupportedIsNamed) {
  const std::pair<std::string, const char*> cases[] = {
      {"{% macro f(x) %}{% endmacro %}", "uses the statement 'macro', which is not supported"},
      {"{{ messages | tojson }}", "uses the filter 'tojson', which is not supported"},
      {"{{ messages[0].content.title() }}", "uses the method 'title', which is not supported"},
      {"{{ strftime_now('%d') }}", "uses the function 'strftime_now', which is not supported"},
      {"{{ 1 is divisibleby(2) }}", "has '(' where it is not understood"},
      {"{{ 1 is even }}", "uses the test 'even', which is not supported"},
      {"{{ messages }}", "prints a list or an object, which is not supported"},
      {"{{ 7 * 6 }}", "has '*' where it is not understood"},
      {"{{ 1.5 }}", "not understood"},
      {"{{ {'a': 1} }}", "has '{' where it is not understood"},
      {"{% for k, v in messages %}{% endfor %}", "has 'k, v' where one name must be"},
      {"{% for c in 'text' %}{% endfor %}", "loops over what is no list"},
      {"{{ raise_exception('not so') }}", "refuses the message: not so"},
      {"{{ nobody.content }}", "asks for 'content' of what is not defined"},
      {"{{ 'a' + nobody }}", "'+' of what is not defined"},
      {"{% if true %}", "ends inside of an 'if' or a 'for'"},
      {"{% endif %}", "has 'endif' too often"},
      {"{% if true %}{% endfor %}", "has 'endfor' instead of 'endif'"},
      {"{% if true %}{% else %}{% else %}{% endif %}", "has 'else' instead of 'endif'"},
      {"{{ 'a", "has a tag without its '}}'"},
      {"{{ 1 +", "has a tag without its '}}'"},
      {"{{ (1 }}", "ends too early"},
      {"{{ }}", "ends too early"},
      {"{% %}", "uses the statement '', which is not supported"},
      {"{% set x %}y{% endset %}", "has a 'set' without '='"},
      {"{% set messages.x = 1 %}", "sets 'x' of what is no namespace"},
      {"{{ '\\d' }}", "has an unknown escape"},
      {"{{ 99999999999999999999 }}", "that is not supported"},
      {"{{ messages[99999999][0] }}", "uses the index"},
      {std::string(2000000, 'x'), "is too long"},
  };
  for (const auto& [source, reason] : cases) {
    const std::string error = error_of([&] { ChatTemplate(source, {}, "t.jinja").render("p"); });
    EXPECT_THAT(error, HasSubstr("t.jinja: 'chat_template' ")) << source.substr(0, 80);
    EXPECT_THAT(error, HasSubstr(reason)) << source.substr(0, 80);
  }
  // What the message does not reach does not matter.
  EXPECT_EQ(ChatTemplate("{% if false %}{{ 1 | tojson }}{% endif %}", {}, "t").render("p"), "");
}

// Templates that would take all memory, or the stack.
TEST(ChatTemplates, HostileOnesEnd) {
  const auto repeated = [](const std::string& text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
  };
  const std::string sources[] = {
      "{% set x = 'xxxxxxxx' %}" + repeated("{% set x = x + x %}", 60),
      "{% set x = 2 %}" + repeated("{% set x = x + x %}", 80) + "{{ x }}",
      "{{ " + repeated("(", 100000) + " }}",
      "{{ " + repeated("not ", 100000) + "1 }}",
      "{{ " + repeated("-", 100000) + "1 }}",
      "{{ " + repeated("[", 100000) + " }}",
      "{{ " + repeated("1 if 1 else ", 50000) + "1 }}",
      "{{ 1" + repeated(" + 1", 100000) + " }}",
      "{{ x" + repeated(".x", 100000) + " }}",
      "{{ x" + repeated(" or x", 100000) + " }}",
      "{{ 'x'" + repeated("|trim", 100000) + " }}",
      "{% set l = [" + repeated("1,", 300) + "] %}" + repeated("{% for a in l %}", 10) +
          repeated("{% endfor %}", 10),
      "{% set x = [1] %}" + repeated("{% set x = [x, x] %}", 60),
      "{% set n = namespace() %}" + repeated("{% set n.a = n %}{% set n.b = n %}", 60),
      "{% set n = namespace() %}" + repeated("{% set n = namespace(a=n, b=n) %}", 60),
      repeated("{% if true %}", 50000),
      repeated("{{", 300000),
  };
  for (const std::string& source : sources) {
    EXPECT_THAT(error_of([&] { ChatTemplate(source, {}, "t").render("p"); }),
                HasSubstr("'chat_template' "))
        << source.substr(0, 40);
  }
}

TEST(ChatTemplates, AreFoundInTheFolderOfATokenizer) {
  const test::TempDir dir;
  EXPECT_FALSE(ChatTemplate::load(dir.path()).has_value());
  const auto rendered = [&](const char* config) {
    test::write_file(dir / "tokenizer_config.json", config);
    const auto chat = ChatTemplate::load(dir.path());
    return chat ? chat->render("p") : "(none)";
  };
  EXPECT_EQ(rendered(R"({"eos_token":"<e>"})"), "(none)");
  EXPECT_EQ(rendered(R"({"chat_template":null})"), "(none)");
  EXPECT_EQ(rendered(R"({"chat_template":"A{{messages[0].content}}"})"), "Ap");
  EXPECT_EQ(rendered(R"({"chat_template":"{{eos_token}}{{pad_token}}","eos_token":"<e>",
                         "pad_token":{"content":"<p>"}})"),
            "<e><p>");
  EXPECT_EQ(rendered(R"({"chat_template":[{"name":"tool_use","template":"T"},
                         {"name":"default","template":"D"}]})"),
            "D");
  const auto error = [&](const char* config) { return error_of([&] { rendered(config); }); };
  EXPECT_THAT(error(R"({"chat_template":[{"name":"tool_use","template":"T"}]})"),
              HasSubstr("tokenizer_config.json: 'chat_template' is neither"));
  EXPECT_THAT(error(R"({"chat_template":7})"), HasSubstr("'chat_template' is neither"));
  // The file of its own goes first.
  test::write_file(dir / "chat_template.jinja", "F{{messages[0].content}}\n");
  EXPECT_EQ(rendered(R"({"chat_template":"A"})"), "Fp");
  test::write_file(dir / "chat_template.jinja", "{% block x %}");
  EXPECT_THAT(error("{}"), HasSubstr("chat_template.jinja: 'chat_template' uses the statement"));
}

}  // namespace
}  // namespace halftone
