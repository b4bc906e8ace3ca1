#include "runtime/text/end_tokens.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

constexpr std::string_view kEndTexts[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
};

constexpr std::string_view kFimPadTexts[] = {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>",
                                             "[PAD]"};
constexpr std::string_view kFimRepTexts[] = {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>",
                                             "<REPO>", "<reponame>"};
constexpr std::string_view kFimSepTexts[] = {"<|file_sep|>"};

// Tokens of filling in the middle that end what is filled in. The first text that is a token
// counts, and only if the file names no token.
constexpr struct {
  std::optional<uint32_t> Vocabulary::*id;
  std::span<const std::string_view> texts;
} kFimTokens[] = {
    {&Vocabulary::fim_pad_id, kFimPadTexts},
    {&Vocabulary::fim_rep_id, kFimRepTexts},
    {&Vocabulary::fim_sep_id, kFimSepTexts},
};

bool IsMerged(const Vocabulary& vocabulary, std::string_view text) {
  return std::ranges::any_of(vocabulary.merges, [&](std::string_view merge) {
    if (merge.size() != text.size() + 1) return false;
    const size_t space = merge.find(' ');
    return space != merge.npos && text.substr(0, space) == merge.substr(0, space) &&
           text.substr(space) == merge.substr(space + 1);
  });
}

// True if plain text gives the token of this text and type.
bool IsPlainText(const Vocabulary& vocabulary, std::string_view text, int32_t type) {
  return TokenType{type} == TokenType::kNormal && IsMerged(vocabulary, text);
}

}  // namespace

void RetypeTokens(Vocabulary& vocabulary) {
  const std::vector<std::string_view>& tokens = vocabulary.tokens;
  if (vocabulary.types.size() != tokens.size()) return;
  const auto has = [&](std::string_view text) {
    return std::ranges::find(tokens, text) != tokens.end();
  };
  const bool is_gpt_oss = has("<|return|>") && has("<|call|>");
  const bool is_gemma4 = has("<|tool_response>");
  for (size_t id = 0; id < tokens.size(); ++id) {
    const std::string_view text = tokens[id];
    int32_t& type = vocabulary.types[id];
    if (text.empty()) {
      type = static_cast<int32_t>(TokenType::kUnused);
      continue;
    }
    const bool is_end =
        std::ranges::find(kEndTexts, text) != std::end(kEndTexts) && !(is_gemma4 && text == "</s>");
    const bool is_marker = is_gpt_oss && text.starts_with("<|") && text.ends_with("|>");
    if ((is_end || is_marker) && !IsPlainText(vocabulary, text, type)) {
      type = static_cast<int32_t>(TokenType::kControl);
    }
  }
}

absl::StatusOr<std::vector<int32_t>> FindEndTokens(const Vocabulary& vocabulary,
                                                   const TokenIds& ids) {
  std::vector<int32_t> ends;
  for (const auto& [key, id] : kEndTokenKeys) {
    if (!(vocabulary.*id)) continue;
    ORCD_RETURN_IF_ERROR(CheckTokenId(vocabulary, key, *(vocabulary.*id)));
    ends.push_back(static_cast<int32_t>(*(vocabulary.*id)));
  }
  // Adds the token of this text, if there is one.
  const auto add = [&](std::string_view text) {
    const auto token = ids.find(text);
    if (token == ids.end()) return false;
    if (IsPlainText(vocabulary, text, vocabulary.types[token->second])) return false;
    ends.push_back(token->second);
    return true;
  };
  for (const auto& [id, texts] : kFimTokens) {
    if (!(vocabulary.*id)) std::ranges::any_of(texts, add);
  }
  std::ranges::for_each(kEndTexts, add);

  const auto has = [&](std::string_view text) {
    return std::ranges::any_of(ends, [&](int32_t id) { return vocabulary.tokens[id] == text; });
  };
  const auto remove = [&](std::string_view text) {
    std::erase_if(ends, [&](int32_t id) { return vocabulary.tokens[id] == text; });
  };
  const bool has_messages =
      (has("<|return|>") && has("<|call|>")) || (has("<|calls|>") && has("<|flush|>"));
  if (has_messages) remove("<|end|>");
  if (has("<|tool_response>")) remove("</s>");
  std::ranges::sort(ends);
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

}  // namespace orcd
