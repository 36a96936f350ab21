// The manual page against what the program says of itself: every command, flag and choice.
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "tests/cli/process.h"

namespace halftone {
namespace {

using testing::Contains;
using testing::HasSubstr;
using Strings = std::set<std::string>;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Every match of the first group.
Strings matches(const std::string& text, const std::string& pattern) {
  const std::regex expression(pattern);
  Strings found;
  for (std::sregex_iterator at(text.begin(), text.end(), expression), end; at != end; ++at) {
    found.insert((*at)[1]);
  }
  return found;
}

class Manual : public test::Cli {
 protected:
  // Text of each subsection of OPTIONS, by the commands that its heading names.
  void SetUp() override {
    text_ = std::regex_replace(test::read_file(HALFTONE_MANUAL), std::regex(R"(\\f[BIR])"), "");
    text_ = std::regex_replace(text_, std::regex(R"(\\-)"), "-");
    std::vector<std::string> commands;
    for (const std::string& line : lines_of(text_)) {
      if (line.starts_with(".SH")) commands.clear();
      if (line.starts_with(".SS ")) {
        const std::string heading = std::regex_replace(line.substr(4), std::regex(" and "), ", ");
        const std::regex comma(", ");
        commands.assign(std::sregex_token_iterator(heading.begin(), heading.end(), comma, -1), {});
        continue;
      }
      for (const std::string& command : commands) options_[command] += line + "\n";
    }
  }

  // What a command's help lists: "  -f,--format F:{fp8,...}  text".
  Strings flags_in_help(const std::string& help) {
    Strings flags;
    for (const std::string& line : lines_of(help)) {
      if (!line.starts_with("  -") || line.starts_with("  -h,--help")) continue;
      const std::string names = line.substr(2, line.find(' ', 2) - 2);
      flags.merge(matches(names, "(--?[a-z-]+)"));
    }
    return flags;
  }

  void expect_explained(const std::vector<std::string>& command, const std::string& name) {
    SCOPED_TRACE(name);
    std::vector<std::string> arguments = command;
    arguments.push_back("--help");
    const std::string help = run(arguments).out;
    const std::string& section = options_[name];
    // Flags begin their lines: they are not merely spoken of.
    std::string tags;
    const auto lines = lines_of(section);
    for (size_t i = 1; i < lines.size(); ++i) {
      if (lines[i - 1] == ".TP") tags += " " + lines[i];
    }
    EXPECT_EQ(matches(tags, "[ ](--?[a-z][a-z-]*)"), flags_in_help(help));
    for (const std::string& choices : matches(help, R"(\{([^}]*)\})")) {
      for (const std::string& choice : matches(choices, "([^,]+)")) {
        EXPECT_TRUE(
            std::regex_search(" " + section, std::regex("[\\s(]" + quoted(choice) + "[\\s,.;:)]")))
            << choice;
      }
    }
  }

  static std::string quoted(const std::string& text) {
    return std::regex_replace(text, std::regex(R"([+.])"), R"(\$&)");
  }

  // The names under "Subcommands:".
  static std::vector<std::string> commands_in_help(const std::string& help) {
    std::vector<std::string> commands;
    bool there = false;
    for (const std::string& line : lines_of(help)) {
      if (there && line.starts_with("  "))
        commands.push_back(line.substr(2, line.find(' ', 2) - 2));
      there = line == "Subcommands:" || (there && !line.empty());
    }
    return commands;
  }

  std::string text_;
  std::map<std::string, std::string> options_;
};

TEST_F(Manual, EveryCommandFlagAndChoiceOfTheProgramIsInIt) {
#if !defined(HALFTONE_SERVER)
  GTEST_SKIP() << "this build has no server, whose flags the manual explains";
#endif
  const auto commands = commands_in_help(run({"--help"}).out);
  ASSERT_THAT(commands, Contains("generate"));
  ASSERT_GE(commands.size(), 8u);
  Strings known = {"all commands"};
  for (const std::string& command : commands) {
    const auto parts = commands_in_help(run({command, "--help"}).out);
    if (parts.empty()) {
      EXPECT_THAT(text_, HasSubstr(".B halftone " + command)) << "synopsis";
      EXPECT_THAT(text_, HasSubstr("\n.B " + command + "\n")) << "commands";
      expect_explained({command}, command);
      known.insert(command);
    }
    for (const std::string& part : parts) {
      const std::string name = command + " " + part;
      EXPECT_THAT(text_, HasSubstr(name));
      expect_explained({command, part}, name);
      known.insert(name);
    }
  }
  EXPECT_THAT(options_["all commands"], HasSubstr("--version"));
  for (const auto& [command, section] : options_) EXPECT_THAT(known, Contains(command));
}

}  // namespace
}  // namespace halftone
