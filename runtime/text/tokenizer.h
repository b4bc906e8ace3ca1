// Text to token ids, and ids to bytes of text. Kinds of tokenizer are rows of a table.
#ifndef ORCD_RUNTIME_TEXT_TOKENIZER_H_
#define ORCD_RUNTIME_TEXT_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/gguf/gguf_reader.h"
#include "runtime/text/packed_strings.h"
#include "runtime/text/special_tokens.h"
#include "runtime/text/vocabulary.h"

namespace orcd {

// Immutable after creation; any thread may call. Owns copies of its data; does not view the file.
// Special, BOS, EOS and end tokens are the same for every kind of tokenizer; plain text is not.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Returns the errors of ReadVocabulary and of Create.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> FromGguf(const GgufReader& gguf);

  // kInvalidArgument (reason TOKENIZER_INVALID) naming the key if tokens and types differ in
  // number; two tokens that are not empty are alike; a suppressed token, a token that ends a
  // generation, or one that texts begin or end with is outside the vocabulary; every token is
  // suppressed; or the errors of the vocabulary's kind.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Create(const Vocabulary& vocabulary);

  int vocab_size() const { return static_cast<int>(texts_.size()); }

  // The largest number of bytes of text that one token is encoded from; at least 1.
  size_t longest_token_bytes() const { return longest_token_bytes_; }

  // The ids of `text`. Control tokens written in the text are recognised if `parse_special`;
  // user-defined ones always. An invalid UTF-8 byte counts as U+FFFD. BOS comes first and EOS last
  // where Vocabulary says so, whatever the text holds, as in llama.cpp. Never returns an unused
  // token. Takes O(n log n) time for a text of length n, whatever it holds.
  std::vector<int32_t> Encode(std::string_view text, bool parse_special) const;

  // The ids of `text` alone, without BOS and EOS, which are a chat template's own matter. Control
  // tokens are recognised only in the spans that allow them and must lie within one; words and
  // user-defined tokens are found as if there were no spans. `spans` are ascending and disjoint;
  // outside of them no special token is recognised.
  std::vector<int32_t> Encode(std::string_view text, std::span<const TextSpan> spans) const;

  // The bytes of one token; they need not be whole characters. Empty for control, unknown and
  // unused tokens and for ids outside the vocabulary. The bytes of a text's tokens, one after the
  // other, are the text; where Vocabulary::adds_space_prefix, with a space before it. A generation
  // keeps the space that its first token spells: it continues a text.
  std::string_view TokenBytes(int32_t id) const;

  // The token as the vocabulary spells it, such as `<|im_end|>`; empty for ids outside the
  // vocabulary.
  std::string_view TokenText(int32_t id) const;

  // The tokens that the file names, for a chat template; -1, whose text is empty, if it names none.
  int32_t bos_id() const { return bos_id_; }
  int32_t eos_id() const { return eos_id_; }
  int32_t unk_id() const { return unk_id_; }
  int32_t pad_id() const { return pad_id_; }

  // Ids that must not be drawn, ascending.
  const std::vector<int32_t>& suppressed_ids() const { return suppressed_ids_; }

  // The id of a special token by its text; -1 if there is none.
  int32_t FindSpecial(std::string_view text) const { return special_.FindId(text); }

  // Ids that end a generation, ascending: see FindEndTokens.
  const std::vector<int32_t>& eog_ids() const { return eog_ids_; }
  bool IsEog(int32_t id) const;

 private:
  // Appends the ids of `text`, which is not empty, is valid UTF-8 and has no special tokens.
  virtual void AppendPlain(std::string_view text, std::vector<int32_t>& ids) const = 0;
  // The bytes that a normal or byte token, spelled `token`, contributes to a text.
  virtual std::string SpelledBytes(std::string_view token) const = 0;

  bool Contains(int32_t id) const { return id >= 0 && id < vocab_size(); }
  void Append(std::string_view text, std::span<const TextSpan> spans,
              std::vector<int32_t>& ids) const;

  SpecialTokens special_;
  PackedStrings texts_;
  PackedStrings bytes_;
  std::vector<int32_t> eog_ids_;
  std::vector<int32_t> suppressed_ids_;
  int32_t bos_id_ = -1;
  int32_t eos_id_ = -1;
  int32_t unk_id_ = -1;
  int32_t pad_id_ = -1;
  bool adds_bos_ = false;
  bool adds_eos_ = false;
  size_t longest_token_bytes_ = 1;
};

// Says if texts begin with BOS.
enum class BosRule {
  // As the file says, else as the row of the pre-tokenizer does.
  kByPreTokenizer,
  kUnlessFileSaysNo,
  // Whatever the file says.
  kAlways,
};

// A row of the table of tokenizers.
struct TokenizerKind {
  // The value of `tokenizer.ggml.model`.
  std::string_view name;
  // Parts of the vocabulary that the kind needs.
  bool has_pre_tokenizer;
  bool has_merges;
  bool has_scores;
  BosRule bos;
  // `ids` has all tokens of `vocabulary`, whose types are valid. The result views neither.
  absl::StatusOr<std::unique_ptr<Tokenizer>> (*make)(const Vocabulary& vocabulary,
                                                     const TokenIds& ids);
};

std::span<const TokenizerKind> TokenizerKinds();

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_TOKENIZER_H_
