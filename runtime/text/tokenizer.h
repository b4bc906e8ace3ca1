// Byte-level BPE with Qwen2's pre-tokenizer, as `tokenizer.ggml.model` = gpt2, `tokenizer.ggml.pre`
// = qwen2 describe it.
#ifndef ORCD_RUNTIME_TEXT_TOKENIZER_H_
#define ORCD_RUNTIME_TEXT_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/gguf/gguf_reader.h"

namespace orcd {

// Immutable after creation; any thread may call. Owns copies of what it needs, not views of the
// file.
class Tokenizer {
 public:
  // kInvalidArgument naming the key where the vocabulary, the merges or the token types are
  // missing, of unequal length, or hold duplicates; kUnimplemented for another tokenizer model or
  // pre-tokenizer.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> FromGguf(const GgufReader& gguf);

  virtual ~Tokenizer() = default;

  virtual int vocab_size() const = 0;

  // The ids of `text`. Control tokens written in it are recognised where `parse_special`;
  // user-defined ones always. An invalid UTF-8 byte counts as U+FFFD. Never adds a
  // beginning-of-sequence token.
  virtual std::vector<int32_t> Encode(std::string_view text, bool parse_special) const = 0;

  // The bytes of one token, which need not be whole characters. Empty for control and unused tokens
  // and for ids outside the vocabulary.
  virtual std::string_view TokenBytes(int32_t id) const = 0;

  // The token as the vocabulary spells it, such as `<|im_end|>`; empty outside the vocabulary.
  virtual std::string_view TokenText(int32_t id) const = 0;

  // The id of a control or user-defined token by its text; -1 where there is none.
  virtual int32_t FindSpecial(std::string_view text) const = 0;

  // Ids that end a generation, ascending: the file's eos and eot, and the well-known end tokens the
  // vocabulary has.
  virtual const std::vector<int32_t>& eog_ids() const = 0;
  virtual bool IsEog(int32_t id) const = 0;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_TOKENIZER_H_
