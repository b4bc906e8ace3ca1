// Vocabularies for random-weight models.
#ifndef ORCD_TESTING_RANDOM_MODEL_VOCABULARY_H_
#define ORCD_TESTING_RANDOM_MODEL_VOCABULARY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/gguf/gguf_reader.h"

namespace orcd {

// The contents of `tokenizer.ggml.*` and `tokenizer.chat_template`.
struct TokenizerMetadata {
  std::vector<std::string> tokens;
  // Type of each token: 1 normal, 3 control, 4 user-defined, 5 unused.
  std::vector<int32_t> types;
  std::vector<std::string> merges;
  uint32_t bos = 0;
  uint32_t eos = 0;
  uint32_t pad = 0;
  std::string chat_template;
  // Empty, or one for each token.
  std::vector<float> scores;
  // The file that the vocabulary is copied from, which has all other keys of `tokenizer.*`; null
  // for a made-up vocabulary.
  std::shared_ptr<const GgufReader> source;
};

// A byte-level vocabulary of `size` tokens, at least 512: the 256 bytes, merges of common English
// words and of letters, and Qwen2.5's 22 special tokens. If `size` has room, the special tokens
// have Qwen2.5's ids and `[PAD…]` tokens of type unused follow them; otherwise they stand at the
// end. Any text or chat can be encoded.
TokenizerMetadata MakeVocabulary(int size);

// The vocabulary of another GGUF file, of any kind, with `[PAD…]` tokens up to `min_size`. If that
// file has no chat template, the result has Qwen2.5's.
absl::StatusOr<TokenizerMetadata> ReadVocabulary(const std::string& path, int min_size);

}  // namespace orcd

#endif  // ORCD_TESTING_RANDOM_MODEL_VOCABULARY_H_
