// What turns pieces of text into token ids: the part of a tokenizer that has a vocabulary.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace halftone {

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  virtual void encode(std::string_view piece, std::vector<int32_t>& ids) const = 0;
  // The id of a token as files write it; -1 where there is none.
  virtual int32_t find(std::string_view token) const = 0;
};

}  // namespace halftone
