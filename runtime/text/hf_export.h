// A model's tokenizer as files that other programs read.
#ifndef ORCD_RUNTIME_TEXT_HF_EXPORT_H_
#define ORCD_RUNTIME_TEXT_HF_EXPORT_H_

#include <string>

#include "absl/status/statusor.h"
#include "runtime/gguf/gguf_reader.h"

namespace orcd {

// The files that Hugging Face's `tokenizers` and `transformers` call by these names, with `.json`
// after them.
struct TokenizerFiles {
  // Gives the same ids as Tokenizer::Encode with `parse_special` (for SentencePiece's kind almost
  // always: see hf_export_spm.h), and the text that the bytes of the tokens spell. Unused tokens,
  // which no text encodes to, are left out.
  std::string tokenizer;
  // Contains the chat template if the model file has one.
  std::string tokenizer_config;
};

// Makes the files from the metadata of a model file that Tokenizer::FromGguf accepts.
// `model_max_length` is in tokens. The same file gives the same bytes. Fails with kUnimplemented
// (TOKENIZER_UNSUPPORTED) if a token or the chat template is not UTF-8, which JSON cannot carry;
// with the errors of ReadVocabulary; and with kDataLoss (FILE_CHANGED) if the file changed since it
// was loaded. Takes about a second for a vocabulary of Qwen2's size.
absl::StatusOr<TokenizerFiles> ExportTokenizer(const GgufReader& gguf, int model_max_length);

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_HF_EXPORT_H_
