// Byte-pair encoding: of one word, and the tokenizer that applies it to the words of a text.
#ifndef ORCD_RUNTIME_TEXT_BPE_H_
#define ORCD_RUNTIME_TEXT_BPE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/text/tokenizer.h"

namespace orcd {

// The merge table: which pairs of tokens merge, and in which order. Any thread may read once it is
// filled.
class Bpe {
 public:
  static constexpr int32_t kNoToken = -1;

  // Scratch memory, kept between words to avoid allocations. One thread at a time.
  class Workspace {
   private:
    friend class Bpe;
    // A part of a long word, as a node of a doubly linked list.
    struct Part {
      int32_t id;  // kMerged once the part has merged into its left neighbour.
      uint32_t previous;
      uint32_t next;
    };
    struct Candidate {
      int32_t rank;
      uint32_t left;
      // Ids of the two parts when the candidate was found. The candidate is stale once either has
      // changed.
      int32_t left_id;
      int32_t right_id;
    };
    std::vector<int32_t> byte_parts_;
    std::vector<Part> parts_;
    std::vector<Candidate> heap_;
  };

  // For words that are given as tokens.
  Bpe() : byte_ids_{} {}
  // `byte_ids` holds the token of each byte; kNoToken if there is none.
  explicit Bpe(const std::array<int32_t, 256>& byte_ids) : byte_ids_(byte_ids) {}

  void Reserve(size_t merges, size_t words) {
    merges_.reserve(merges);
    words_.reserve(words);
  }

  // Adds a merge that ranks after all earlier ones. False if the pair already has a merge.
  bool AddMerge(int32_t left, int32_t right, int32_t merged) {
    return AddMerge(left, right, merged, static_cast<int32_t>(merges_.size()));
  }
  // The same with a rank, which several merges may have.
  bool AddMerge(int32_t left, int32_t right, int32_t merged, int32_t rank);

  // Appends the tokens of `word` to `ids`: starts from the tokens of its bytes and repeatedly
  // merges the pair of the lowest rank, the leftmost among equals. A byte without a token is left
  // out before, as in Hugging Face's tokenizers. Takes O(n log n) time for n bytes.
  void Append(std::string_view word, Workspace& workspace, std::vector<int32_t>& ids) const;
  // The same, starting from the tokens `word`.
  void Append(std::span<const int32_t> word, Workspace& workspace, std::vector<int32_t>& ids) const;

  // Makes `word` the token `id`, whatever the merges say, for AppendWhole.
  void AddWord(std::string_view word, int32_t id);
  // Appends the token that AddWord gave `word`; false if there is none.
  bool AppendWhole(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    int32_t rank = kNoRank;
    int32_t id = kNoToken;
  };
  static constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();

  Merge Find(int32_t left, int32_t right) const {
    const auto merge = merges_.find(Key(left, right));
    return merge == merges_.end() ? Merge() : merge->second;
  }
  static uint64_t Key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }

  void AppendShort(std::span<const int32_t> word, std::vector<int32_t>& ids) const;
  void AppendLong(std::span<const int32_t> word, Workspace& workspace,
                  std::vector<int32_t>& ids) const;
  void PushCandidate(uint32_t left, Workspace& workspace) const;

  std::array<int32_t, 256> byte_ids_;
  absl::flat_hash_map<uint64_t, Merge> merges_;
  absl::flat_hash_map<std::string, int32_t> words_;
  size_t longest_word_ = 0;
};

// Adds the merges of `vocabulary`. kInvalidArgument (reason TOKENIZER_INVALID) naming the key if a
// merge is malformed, duplicate, or names a token that does not exist or must not result from plain
// text.
absl::Status AddMerges(const Vocabulary& vocabulary, const TokenIds& ids, Bpe& bpe);

// The tokenizer of GPT-2: byte-level BPE within the words of the vocabulary's pre-tokenizer.
// Returns the errors of AddMerges, and kInvalidArgument (reason TOKENIZER_INVALID) if a byte that
// texts need, spelled as byte_map.h has it, has no token. Vocabularies may lack control characters,
// and bytes that no assigned character has in UTF-8 (SmolLM2's lacks 21 in all).
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeBpeTokenizer(const Vocabulary& vocabulary,
                                                            const TokenIds& ids);

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_BPE_H_
