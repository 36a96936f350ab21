// Calibration, search and certificate never share a prompt.
#include "halftone/quantize/prompt_sets.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

namespace halftone {
namespace {

void expect_disjoint(const PromptSets& sets) {
  std::multiset<std::string> all;
  for (const auto* list : {&sets.calibration, &sets.search, &sets.certificate}) {
    all.insert(list->begin(), list->end());
  }
  for (const std::string& prompt : all) EXPECT_EQ(all.count(prompt), 1u) << prompt;
}

TEST(PromptSets, OurOwnHaveNoneInCommon) {
  const PromptSets own = usual_prompt_sets();
  expect_disjoint(own);
  EXPECT_GE(own.calibration.size(), 8u);
  EXPECT_GE(own.search.size(), 8u);
  EXPECT_GE(own.certificate.size(), 8u);
}

TEST(PromptSets, AListOfAnyLengthIsSplitWhole) {
  for (size_t length = 1; length <= 40; ++length) {
    std::vector<std::string> list;
    for (size_t i = 0; i < length; ++i) list.push_back(fmt::format("prompt {}", i));
    for (const bool searches : {false, true}) {
      const PromptSets sets = split_prompts(list, searches);
      expect_disjoint(sets);
      EXPECT_FALSE(sets.calibration.empty());
      EXPECT_FALSE(sets.certificate.empty());
      EXPECT_EQ(sets.search.empty(), !searches && length >= kFewestToSplit);
      if (length < kFewestToSplit) {
        EXPECT_EQ(sets.calibration, list);
        EXPECT_EQ(sets.certificate, usual_prompt_sets().certificate);
      } else {
        EXPECT_EQ(sets.calibration.size() + sets.search.size() + sets.certificate.size(), length);
      }
    }
  }
}

TEST(PromptSets, APromptThatIsThereTwiceIsInOneList) {
  const PromptSets sets = split_prompts({"a", "a", "b", "c", "a", "b", "c", "d"}, true);
  expect_disjoint(sets);
  EXPECT_EQ(sets.calibration.size() + sets.search.size() + sets.certificate.size(), 4u);
  // Ours are not measured on where a short list names them.
  const std::string ours = usual_prompt_sets().certificate[0];
  expect_disjoint(split_prompts({ours, ours}, true));
}

}  // namespace
}  // namespace halftone
