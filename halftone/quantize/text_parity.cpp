#include "halftone/quantize/text_parity.h"

#include <algorithm>

#include "halftone/quantize/metrics.h"

namespace halftone {
namespace {

// Of every row of `tokens`, or of all values where there are no rows.
void add_cosines(const Tensor& a, const Tensor& b, int64_t tokens, std::vector<double>& cosines) {
  const int64_t width = a.shape()[-1], rows = std::min(tokens, a.numel() / width);
  for (int64_t r = 0; r < rows; ++r) {
    const auto at = static_cast<size_t>(r * width), count = static_cast<size_t>(width);
    cosines.push_back(cosine(a.as<float>().subspan(at, count), b.as<float>().subspan(at, count)));
  }
}

bool are_alike(const TextPair& pair) {
  const auto &a = *pair.reference, &b = *pair.compared;
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](auto& x, auto& y) {
           return std::ranges::all_of(x, [&](const auto& output) {
             const auto found = y.find(output.first);
             return found != y.end() && found->second.shape() == output.second.shape();
           });
         });
}

}  // namespace

std::vector<TextParity> text_parity(const std::vector<std::string>& encoders,
                                    const std::vector<TextPair>& prompts) {
  std::vector<TextParity> found;
  if (prompts.empty() || !std::ranges::all_of(prompts, are_alike)) return found;
  for (size_t i = 0; i < encoders.size(); ++i) {
    for (const auto& [output, first] : prompts[0].reference->at(i)) {
      std::vector<double> cosines;
      for (const TextPair& pair : prompts) {
        add_cosines(pair.reference->at(i).at(output), pair.compared->at(i).at(output),
                    pair.tokens[i], cosines);
      }
      found.push_back(
          {encoders[i], output, Spread::of(std::move(cosines), Spread::Worse::kSmaller)});
    }
  }
  return found;
}

std::vector<int64_t> read_tokens(const Conditioner& conditioner, const std::string& prompt) {
  const PromptTokens ids = conditioner.tokenize(prompt);
  std::vector<int64_t> tokens;
  for (const auto& of_encoder : ids) {
    tokens.push_back(
        std::max(static_cast<int64_t>(of_encoder.size()), conditioner.text_tokens(ids)));
  }
  return tokens;
}

}  // namespace halftone
