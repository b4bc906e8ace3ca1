// Encodes libFuzzer's inputs, as prompts that a client sends, and decodes the ids again, with a
// vocabulary of each kind.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_replace.h"
#include "runtime/base/utf8.h"
#include "runtime/text/small_vocabulary_for_test.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/utf8_stream.h"

namespace {

using TokenizerPtr = std::unique_ptr<const orcd::Tokenizer>;

TokenizerPtr MakeByteLevel(std::string_view pre_tokenizer) {
  orcd::SmallVocabulary vocabulary;
  vocabulary.AddMerge("i", "n");
  vocabulary.AddMerge("Ġ", "in");
  vocabulary.AddMerge("Ċ", "Ċ");
  vocabulary.AddMerge("ĊĊ", "ĊĊ");
  vocabulary.AddMerge("ï", "¿");
  vocabulary.AddMerge("ï¿", "½");
  vocabulary.Add("<|im_end|>", orcd::TokenType::kControl);
  vocabulary.Add("<tool_call>", orcd::TokenType::kUserDefined);
  orcd::Vocabulary view = vocabulary.View();
  view.pre_tokenizer = *orcd::FindPreTokenizer(pre_tokenizer);
  return *orcd::Tokenizer::Create(view);
}

// `kind` is `llama` or `gemma4`.
TokenizerPtr MakeSpm(std::string_view kind) {
  orcd::SmallSpmVocabulary vocabulary;
  for (const char* character : {"▁", "\n", "i", "n", "<", "\uFFFD"}) vocabulary.Add(character, -9);
  vocabulary.Add("né", -1);
  vocabulary.AddMerge("i", "n");
  vocabulary.AddMerge("▁", "in");
  vocabulary.AddMerge("in", "▁");
  vocabulary.AddMerge("\n", "\n");
  vocabulary.Add("\n\n\n", -2);
  vocabulary.Add("<|im_end|>", 0, orcd::TokenType::kControl);
  vocabulary.Add("<tool_call>", 0, orcd::TokenType::kUserDefined);
  vocabulary.Add("  ", 0, orcd::TokenType::kUserDefined);
  return *orcd::Tokenizer::Create(vocabulary.View(kind));
}

void Check(const orcd::Tokenizer& tokenizer, const std::string& bytes,
           const std::string& expected) {
  std::string decoded;
  orcd::Utf8Stream stream;
  std::string streamed;
  for (const int32_t id : tokenizer.Encode(bytes, /*parse_special=*/false)) {
    decoded += tokenizer.TokenBytes(id);
    streamed += stream.Append(tokenizer.TokenBytes(id));
  }
  streamed += stream.Finish();
  if (decoded != expected || streamed != decoded) std::abort();
  tokenizer.Encode(bytes, /*parse_special=*/true);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const TokenizerPtr byte_level[] = {MakeByteLevel("qwen2"), MakeByteLevel("gpt-4o"),
                                            MakeByteLevel("deepseek-llm")};
  static const TokenizerPtr spm = MakeSpm("llama");
  static const TokenizerPtr gemma4 = MakeSpm("gemma4");
  const std::string bytes(data, data + size);
  std::string expected = orcd::ReplaceInvalidUtf8(bytes);
  for (const TokenizerPtr& tokenizer : byte_level) Check(*tokenizer, bytes, expected);
  // They spell a space as ▁.
  absl::StrReplaceAll({{"▁", " "}}, &expected);
  Check(*spm, bytes, expected);
  Check(*gemma4, bytes, expected);

  orcd::Utf8Stream whole;
  std::string text = whole.Append(bytes);
  text += whole.Finish();
  if (orcd::FindInvalidUtf8(text) != text.size()) std::abort();
  return 0;
}
