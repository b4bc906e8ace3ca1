#include "runtime/text/hf_export.h"

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/hf_export_spm.h"
#include "runtime/text/vocabulary.h"

namespace orcd {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kEndOfText = "<|endoftext|>";

absl::Status NotUtf8(std::string_view key, std::string_view what) {
  return MakeError(absl::StatusCode::kUnimplemented,
                   absl::StrCat(std::string(key), ": ", std::string(what),
                                " is not UTF-8 and cannot be handed out; send text, or convert "
                                "the model again"),
                   {.reason = "TOKENIZER_UNSUPPORTED"});
}

// Appends `text`, which is UTF-8, to `out` as a JSON string. A vocabulary has hundreds of thousands
// of strings; a Json value for each would be made and thrown away.
void AppendString(std::string_view text, std::string& out) {
  static constexpr char kHex[] = "0123456789abcdef";
  out.push_back('"');
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (byte < 0x20) {
      out.append("\\u00").push_back(kHex[byte >> 4]);
      out.push_back(kHex[byte & 0xF]);
    } else {
      out.push_back(c);
    }
  }
  out.push_back('"');
}

bool IsLeftOut(int32_t type) { return TokenType{type} == TokenType::kUnused; }

Json AddedToken(const Vocabulary& vocabulary, size_t id) {
  return {{"content", vocabulary.tokens[id]},
          {"single_word", false},
          {"lstrip", false},
          {"rstrip", TakesSpaceAfter(vocabulary, vocabulary.tokens[id])},
          {"normalized", false},
          {"special", IsControl(TokenType{vocabulary.types[id]})}};
}

Json ByteLevel() {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", false},
          {"use_regex", false}};
}

absl::Status CheckUtf8(const Vocabulary& vocabulary) {
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string_view token = vocabulary.tokens[id];
    if (IsLeftOut(vocabulary.types[id]) || FindInvalidUtf8(token) == token.size()) continue;
    return NotUtf8(kTokensKey, absl::StrCat("token ", id));
  }
  return absl::OkStatus();
}

// The pre-tokenizer's patterns, with character classes written out, because libraries differ in the
// version of Unicode that they know.
Json Splits(const PreTokenizer& pre_tokenizer) {
  Json splits = Json::array();
  for (const std::string_view pattern : pre_tokenizer.patterns) {
    splits.push_back({{"type", "Split"},
                      {"pattern", {{"Regex", WriteOutClasses(pattern)}}},
                      {"behavior", "Isolated"},
                      {"invert", false}});
  }
  return splits;
}

// The members of an object as Json writes them, without the closing brace.
std::string Begin(const Json& object) {
  std::string text = object.dump();
  text.pop_back();
  return text;
}

// The token's text. Null if there is no token, or if no text encodes to it.
Json TokenText(const Vocabulary& vocabulary, std::optional<uint32_t> id) {
  if (!id || *id >= vocabulary.tokens.size() || IsLeftOut(vocabulary.types[*id])) return nullptr;
  return vocabulary.tokens[*id];
}

// Puts BOS before the encoded text and EOS behind it, where texts have them, after `own`, the
// processor of the kind or null.
Json PostProcessor(const Vocabulary& vocabulary, Json own) {
  Json special = Json::object();
  // The piece that adds a token, if it is added.
  const auto token = [&](bool adds, std::optional<uint32_t> id) {
    Json pieces = Json::array();
    const Json text = adds ? TokenText(vocabulary, id) : nullptr;
    if (text.is_null()) return pieces;
    special[text.get<std::string>()] = {
        {"id", text}, {"ids", Json::array({*id})}, {"tokens", Json::array({text})}};
    pieces.push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
    return pieces;
  };
  const Json bos = token(vocabulary.adds_bos, vocabulary.bos_id);
  const Json eos = token(vocabulary.adds_eos, vocabulary.eos_id);
  if (special.empty()) return own;
  const auto with = [&](Json pieces, const char* sequence, int type) {
    pieces.insert(pieces.end(), bos.begin(), bos.end());
    pieces.push_back({{"Sequence", {{"id", sequence}, {"type_id", type}}}});
    pieces.insert(pieces.end(), eos.begin(), eos.end());
    return pieces;
  };
  const Json single = with(Json::array(), "A", 0);
  Json adding = {{"type", "TemplateProcessing"},
                 {"single", single},
                 {"pair", with(single, "B", 1)},
                 {"special_tokens", std::move(special)}};
  if (own.is_null()) return adding;
  return {{"type", "Sequence"}, {"processors", Json::array({std::move(own), std::move(adding)})}};
}

std::string TokenizerJson(const Vocabulary& vocabulary) {
  const std::vector<std::string_view>& tokens = vocabulary.tokens;
  Json added = Json::array();
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!IsSpecial(TokenType{vocabulary.types[id]})) continue;
    added.push_back(AddedToken(vocabulary, id));
    added.back()["id"] = id;
  }
  const bool is_spm = vocabulary.pre_tokenizer == nullptr;
  SpmExport parts;
  if (is_spm) {
    parts = ExportSpm(vocabulary);
  } else {
    Json pre_tokenizers = Splits(*vocabulary.pre_tokenizer);
    pre_tokenizers.push_back(ByteLevel());
    parts.pre_tokenizer = {{"type", "Sequence"}, {"pretokenizers", std::move(pre_tokenizers)}};
    parts.decoder = ByteLevel();
    parts.merges.assign(vocabulary.merges.begin(), vocabulary.merges.end());
  }
  const Json head = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", std::move(parts.normalizer)},
      {"pre_tokenizer", std::move(parts.pre_tokenizer)},
      {"post_processor", PostProcessor(vocabulary, is_spm ? Json() : ByteLevel())},
      {"decoder", std::move(parts.decoder)},
  };
  const Json model = {
      {"type", "BPE"},
      {"dropout", nullptr},
      {"unk_token", nullptr},
      {"continuing_subword_prefix", nullptr},
      {"end_of_word_suffix", nullptr},
      {"fuse_unk", false},
      {"byte_fallback", is_spm},
      {"ignore_merges", !is_spm && vocabulary.pre_tokenizer->ignores_merges},
  };
  size_t size = 64 << 10;
  for (const std::string_view token : tokens) size += token.size() + 16;
  for (const std::string& merge : parts.merges) size += merge.size() + 8;
  std::string out;
  out.reserve(size);
  out.append(Begin(head)).append(",\"model\":").append(Begin(model)).append(",\"vocab\":{");
  // Special tokens are included, because a token that is only in added_tokens gets the next free
  // id.
  const char* separator = "";
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (IsLeftOut(vocabulary.types[id])) continue;
    out.append(separator);
    AppendString(tokens[id], out);
    absl::StrAppend(&out, ":", id);
    separator = ",";
  }
  out.append("},\"merges\":[");
  separator = "";
  for (const std::string& merge : parts.merges) {
    out.append(separator);
    AppendString(merge, out);
    separator = ",";
  }
  out.append("]}}");
  return out;
}

Json PaddingToken(const Vocabulary& vocabulary) {
  if (vocabulary.pad_id) return TokenText(vocabulary, vocabulary.pad_id);
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.tokens[id] == kEndOfText) return kEndOfText;
  }
  return nullptr;
}

absl::StatusOr<std::string> ConfigJson(const GgufReader& gguf, const Vocabulary& vocabulary,
                                       int model_max_length) {
  Json decoder = Json::object();
  Json special = Json::array();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (!IsSpecial(TokenType{vocabulary.types[id]})) continue;
    Json token = AddedToken(vocabulary, id);
    if (token["special"]) special.push_back(vocabulary.tokens[id]);
    decoder[std::to_string(id)] = std::move(token);
  }
  Json config = {
      {"add_bos_token", vocabulary.adds_bos},
      {"add_eos_token", vocabulary.adds_eos},
      {"add_prefix_space", false},
      {"added_tokens_decoder", std::move(decoder)},
      {"additional_special_tokens", std::move(special)},
      {"bos_token", TokenText(vocabulary, vocabulary.bos_id)},
      {"clean_up_tokenization_spaces", false},
      {"eos_token", TokenText(vocabulary, vocabulary.eos_id)},
      {"errors", "replace"},
      {"model_max_length", model_max_length},
      {"pad_token", PaddingToken(vocabulary)},
      {"split_special_tokens", false},
      {"tokenizer_class", vocabulary.pre_tokenizer == nullptr ? "PreTrainedTokenizerFast"
                                                              : vocabulary.pre_tokenizer->hf_class},
      {"unk_token", TokenText(vocabulary, vocabulary.unk_id)},
  };
  if (const auto chat_template = gguf.GetString(kChatTemplateKey); chat_template.ok()) {
    if (FindInvalidUtf8(*chat_template) != chat_template->size()) {
      return NotUtf8(kChatTemplateKey, "the chat template");
    }
    config["chat_template"] = *chat_template;
  }
  return config.dump(2);
}

}  // namespace

absl::StatusOr<TokenizerFiles> ExportTokenizer(const GgufReader& gguf, int model_max_length) {
  ORCD_ASSIGN_OR_RETURN(const Vocabulary vocabulary, ReadVocabulary(gguf));
  ORCD_RETURN_IF_ERROR(CheckUtf8(vocabulary));
  TokenizerFiles files;
  files.tokenizer = TokenizerJson(vocabulary);
  ORCD_ASSIGN_OR_RETURN(files.tokenizer_config, ConfigJson(gguf, vocabulary, model_max_length));
  // A file that was cut short while it was read gives zeros.
  ORCD_RETURN_IF_ERROR(gguf.CheckIntact());
  return files;
}

}  // namespace orcd
