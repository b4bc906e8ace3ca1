// For tests: ways to split a text into tokens of a vocabulary.
#ifndef ORCD_RUNTIME_CONSTRAINT_TOKEN_SPLITS_FOR_TEST_H_
#define ORCD_RUNTIME_CONSTRAINT_TOKEN_SPLITS_FOR_TEST_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "runtime/text/tokenizer.h"

namespace orcd {

// Requires a vocabulary with a token for every byte, which must outlive this.
class TokenSplits {
 public:
  explicit TokenSplits(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      const std::string_view bytes = tokenizer.TokenBytes(id);
      if (bytes.empty()) continue;
      by_bytes_.try_emplace(bytes, id);
      longest_ = std::max(longest_, bytes.size());
    }
  }

  // The split that a model has learnt.
  std::vector<int32_t> Canonical(std::string_view text) const {
    return tokenizer_.Encode(text, std::span<const TextSpan>());
  }

  std::vector<int32_t> Bytewise(std::string_view text) const {
    std::vector<int32_t> ids;
    for (size_t at = 0; at < text.size(); ++at) ids.push_back(by_bytes_.at(text.substr(at, 1)));
    return ids;
  }

  // Each token is any of those that begin the rest of the text.
  std::vector<int32_t> Random(std::string_view text, std::mt19937_64& random) const {
    std::vector<int32_t> ids;
    while (!text.empty()) {
      const std::vector<int32_t> first = Beginning(text);
      ids.push_back(first[random() % first.size()]);
      text.remove_prefix(tokenizer_.TokenBytes(ids.back()).size());
    }
    return ids;
  }

  // The tokens that `text` begins with, shortest first.
  std::vector<int32_t> Beginning(std::string_view text) const {
    std::vector<int32_t> ids;
    for (size_t size = 1; size <= std::min(longest_, text.size()); ++size) {
      if (const auto found = by_bytes_.find(text.substr(0, size)); found != by_bytes_.end()) {
        ids.push_back(found->second);
      }
    }
    return ids;
  }

 private:
  const Tokenizer& tokenizer_;
  absl::flat_hash_map<std::string_view, int32_t> by_bytes_;
  size_t longest_ = 0;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_TOKEN_SPLITS_FOR_TEST_H_
