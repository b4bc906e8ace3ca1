// Encodes libFuzzer's inputs, as prompts that a client sends, and decodes the ids again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/utf8.h"
#include "runtime/text/small_vocabulary_for_test.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/utf8_stream.h"

namespace {

std::unique_ptr<const orcd::Tokenizer> MakeTokenizer() {
  orcd::SmallVocabulary vocabulary;
  vocabulary.AddMerge("i", "n");
  vocabulary.AddMerge("Ġ", "in");
  vocabulary.AddMerge("Ċ", "Ċ");
  vocabulary.AddMerge("ĊĊ", "ĊĊ");
  vocabulary.AddMerge("ï", "¿");
  vocabulary.AddMerge("ï¿", "½");
  vocabulary.Add("<|im_end|>", orcd::TokenType::kControl);
  vocabulary.Add("<tool_call>", orcd::TokenType::kUserDefined);
  return *orcd::Tokenizer::Create(vocabulary.View());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::unique_ptr<const orcd::Tokenizer> tokenizer = MakeTokenizer();
  const std::string bytes(data, data + size);
  std::string decoded;
  orcd::Utf8Stream stream;
  std::string streamed;
  for (const int32_t id : tokenizer->Encode(bytes, /*parse_special=*/false)) {
    decoded += tokenizer->TokenBytes(id);
    streamed += stream.Append(tokenizer->TokenBytes(id));
  }
  streamed += stream.Finish();
  if (decoded != orcd::ReplaceInvalidUtf8(bytes) || streamed != decoded) std::abort();

  orcd::Utf8Stream whole;
  std::string text = whole.Append(bytes);
  text += whole.Finish();
  if (orcd::FindInvalidUtf8(text) != text.size()) std::abort();
  tokenizer->Encode(bytes, /*parse_special=*/true);
  return 0;
}
