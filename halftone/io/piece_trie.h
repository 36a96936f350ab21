// Which of many known pieces a text starts with, in time bounded by the longest of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace halftone {

class PieceTrie {
 public:
  PieceTrie() : nodes_(1) {}
  // Of equal pieces the last one counts; empty ones are never found.
  explicit PieceTrie(const std::vector<std::pair<std::string_view, int32_t>>& pieces);

  // Calls found(length, value) for every piece that text starts with, shortest first.
  template <class Fn>
  void prefixes(std::string_view text, const Fn& found) const {
    const Node* node = nodes_.data();
    for (size_t at = 0; at < text.size(); ++at) {
      node = child(*node, static_cast<uint8_t>(text[at]));
      if (node == nullptr) return;
      if (node->value >= 0) found(at + 1, node->value);
    }
  }
  // The value of this very piece; -1 where it is none.
  int32_t find(std::string_view piece) const;

 private:
  struct Node {
    uint32_t first = 0;  // children lie one after the other, by label
    uint16_t children = 0;
    uint8_t label = 0;
    int32_t value = -1;
  };
  const Node* child(const Node& node, uint8_t label) const {
    const Node* begin = nodes_.data() + node.first;
    const Node* end = begin + node.children;
    const Node* at = std::lower_bound(
        begin, end, label, [](const Node& a, uint8_t wanted) { return a.label < wanted; });
    return at != end && at->label == label ? at : nullptr;
  }

  std::vector<Node> nodes_;
};

}  // namespace halftone
