// A model's tokenizer as the files that other programs read it from.
#ifndef ORCD_WORKER_VLLM_TOKENIZER_FILES_H_
#define ORCD_WORKER_VLLM_TOKENIZER_FILES_H_

#include <string>

#include "absl/status/statusor.h"
#include "runtime/gguf/gguf_reader.h"

namespace orcd {

// What Hugging Face's `tokenizers` and `transformers` call by these names, with `.json` after them.
struct TokenizerFiles {
  // Gives the ids that Tokenizer::Encode gives with `parse_special`, and the text that the bytes of
  // tokens spell. Tokens that no text can give, unused ones, are left out.
  std::string tokenizer;
  // With the chat template, where the model file has one.
  std::string tokenizer_config;
};

// From the metadata of a model file that Tokenizer::FromGguf accepts. `model_max_length` in tokens.
// The same file gives the same bytes. kUnimplemented (TOKENIZER_UNSUPPORTED) where a token or the
// chat template is not UTF-8, which JSON cannot carry; the errors of ReadVocabulary; kDataLoss
// (FILE_CHANGED) where the file changed since it was loaded. Takes about a second for a vocabulary
// of Qwen2's size.
absl::StatusOr<TokenizerFiles> ExportTokenizer(const GgufReader& gguf, int model_max_length);

}  // namespace orcd

#endif  // ORCD_WORKER_VLLM_TOKENIZER_FILES_H_
