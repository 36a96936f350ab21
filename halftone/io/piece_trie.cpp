#include "halftone/io/piece_trie.h"

namespace halftone {

PieceTrie::PieceTrie(const std::vector<std::pair<std::string_view, int32_t>>& given) : nodes_(1) {
  std::vector<std::pair<std::string_view, size_t>> pieces;  // with their places
  pieces.reserve(given.size());
  for (const auto& [text, value] : given) pieces.emplace_back(text, pieces.size());
  std::sort(pieces.begin(), pieces.end());
  struct Range {  // the pieces below a node, and how many letters they share
    size_t begin, end, depth;
  };
  std::vector<Range> ranges = {{0, pieces.size(), 0}};
  for (size_t i = 0; i < nodes_.size(); ++i) {
    auto [begin, end, depth] = ranges[i];
    for (; begin < end && pieces[begin].first.size() == depth; ++begin) {
      if (depth > 0) nodes_[i].value = given[pieces[begin].second].second;
    }
    nodes_[i].first = static_cast<uint32_t>(nodes_.size());
    while (begin < end) {
      const auto label = static_cast<uint8_t>(pieces[begin].first[depth]);
      size_t next = begin + 1;
      while (next < end && static_cast<uint8_t>(pieces[next].first[depth]) == label) ++next;
      Node node;
      node.label = label;
      nodes_.push_back(node);
      ++nodes_[i].children;
      ranges.push_back({begin, next, depth + 1});
      begin = next;
    }
  }
}

int32_t PieceTrie::find(std::string_view piece) const {
  const Node* node = nodes_.data();
  for (const char c : piece) {
    node = child(*node, static_cast<uint8_t>(c));
    if (node == nullptr) return -1;
  }
  return node->value;
}

}  // namespace halftone
