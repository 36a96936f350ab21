#include "halftone/server/sdapi_names.h"

#include <algorithm>
#include <cctype>

namespace halftone {
namespace {

std::string in_lower_case(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// Their names, without the schedule.
constexpr std::pair<const char*, const char*> kSamplers[] = {{"euler", "euler"},
                                                             {"k_euler", "euler"},
                                                             {"euler a", "euler-a"},
                                                             {"k_euler_a", "euler-a"},
                                                             {"ddim", "ddim"},
                                                             {"dpm++ 2m", "dpm++-2m"},
                                                             {"k_dpmpp_2m", "dpm++-2m"},
                                                             {"dpm++ 2m karras", "dpm++-2m-karras"},
                                                             {"dpm++ 2m sde", "dpm++-2m-sde"},
                                                             {"unipc", "unipc"}};

}  // namespace

std::string scheduler_of_sampler(const std::string& sampler, const std::string& schedule,
                                 const SchedulerConfig& own) {
  std::string name = in_lower_case(sampler);
  for (const auto& [theirs, ours] : kSamplers) {
    if (name == theirs) {
      name = ours;
      break;
    }
  }
  const bool flow = own.prediction == Prediction::kVelocity;
  if (flow && name == "euler") name = "flow-euler";
  if (name == "dpm++-2m" && in_lower_case(schedule) == "karras" && !flow) name += "-karras";
  for (const SchedulerChoice& choice : scheduler_choices()) {
    if (choice.name == name && (flow ? choice.flow : choice.diffusion)) return name;
  }
  return "";
}

std::string model_of_title(const std::string& title) {
  const size_t open = title.rfind(" [");
  return open != std::string::npos && title.ends_with(']') ? title.substr(0, open) : title;
}

}  // namespace halftone
