#include "halftone/quantize/prompt_sets.h"

#include <unordered_set>

namespace halftone {

PromptSets usual_prompt_sets() {
  return {
      {"a red apple on a blue background", "a cat next to a pizza", "a lighthouse at dusk",
       "a smiling face with sunglasses", "a bicycle", "two trees and a house",
       "a rocket on a dark background", "a bowl of soup next to a loaf of bread",
       "the small genie top left on brown background",
       "a little speedboat next to a mini loudspeaker",
       "a swimmer under a dumpling, yellow background", "huge chili pepper and a sad face",
       "cyan trousers", "elephant top right", "a test tube over a steak on a red background",
       "a runner on purple background"},
      {"a roller skate with an orange background", "a shoe near a rice ball on a purple background",
       "a beaver", "a mini goal net on white", "the tiny spider to the right of a roller coaster",
       "a picture of a party popper below a drum on a beige background",
       "an orange bullseye to the left", "shaved ice and a ship with a blue background"},
      {"a koala below a fish cake with a yellow background", "an accordion on a brown background",
       "a small gorilla on top of a firecracker", "cup of tea in the center on a violet background",
       "an avocado to the right of a top hat", "a wind chime",
       "a mini crocodile at the bottom left on a dark blue background",
       "garlic to the left of a wrench over a green background", "a bagel beside a flexed arm",
       "a tiny desktop computer", "a yellow heart next to a mermaid, teal background",
       "a huge puzzle piece", "backpack to the left of a fox", "a chick on a purple background",
       "grapes next to a lemon", "an emoji of a hatching chick over a light blue background"}};
}

std::vector<std::string> unseen(const std::vector<std::string>& prompts,
                                const std::vector<std::string>& seen) {
  std::unordered_set<std::string> taken(seen.begin(), seen.end());
  std::vector<std::string> left;
  for (const std::string& prompt : prompts) {
    if (taken.insert(prompt).second) left.push_back(prompt);
  }
  return left;
}

PromptSets split_prompts(const std::vector<std::string>& prompts, bool searches) {
  const std::vector<std::string> once = unseen(prompts, {});
  if (once.size() < kFewestToSplit) {
    const PromptSets own = usual_prompt_sets();
    return {once, unseen(own.search, once), unseen(own.certificate, once)};
  }
  PromptSets sets;
  for (size_t i = 0; i < once.size(); ++i) {
    const bool measured = i % 4 == 3 || (once.size() == 3 && i == 2);
    (measured                 ? sets.certificate
     : i % 4 == 1 && searches ? sets.search
                              : sets.calibration)
        .push_back(once[i]);
  }
  return sets;
}

}  // namespace halftone
