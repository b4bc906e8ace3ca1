#include "runtime/text/hf_export_spm.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "runtime/base/utf8.h"
#include "runtime/text/spm.h"

namespace orcd {
namespace {

using Json = nlohmann::json;

Json Replace(std::string_view what, std::string_view with) {
  return {{"type", "Replace"}, {"pattern", {{"String", what}}}, {"content", with}};
}

std::vector<std::string> MergesByScore(const Vocabulary& vocabulary) {
  const std::vector<std::string_view>& tokens = vocabulary.tokens;
  std::unordered_map<std::string_view, int32_t> ids;
  for (size_t id = 0; id < tokens.size(); ++id) {
    const TokenType type{vocabulary.types[id]};
    // A merge is written with a space between its tokens.
    if (tokens[id].find(' ') != std::string_view::npos || tokens[id].empty()) continue;
    if (type != TokenType::kNormal && type != TokenType::kUserDefined) continue;
    ids.emplace(tokens[id], static_cast<int32_t>(id));
  }
  struct Merge {
    int32_t token;
    int32_t left;
    int32_t right;
  };
  std::vector<Merge> merges;
  for (const auto& [text, token] : ids) {
    for (size_t cut = DecodeUtf8(text, 0).length; cut < text.size();
         cut += DecodeUtf8(text, cut).length) {
      const auto left = ids.find(text.substr(0, cut));
      if (left == ids.end()) continue;
      const auto right = ids.find(text.substr(cut));
      if (right != ids.end()) merges.push_back({token, left->second, right->second});
    }
  }
  std::ranges::sort(merges, {}, [&](const Merge& merge) {
    return std::tuple(-vocabulary.scores[merge.token], merge.token, merge.left, merge.right);
  });
  std::vector<std::string> written;
  written.reserve(merges.size());
  for (const Merge& merge : merges) {
    written.push_back(std::string(tokens[merge.left]).append(" ").append(tokens[merge.right]));
  }
  return written;
}

}  // namespace

SpmExport ExportSpm(const Vocabulary& vocabulary) {
  SpmExport parts;
  parts.normalizer = Replace(" ", kSpmSpace);
  Json decoders = {Replace(kSpmSpace, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (vocabulary.adds_space_prefix) {
    parts.normalizer = {
        {"type", "Sequence"},
        {"normalizers", {{{"type", "Prepend"}, {"prepend", kSpmSpace}}, parts.normalizer}}};
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  parts.decoder = {{"type", "Sequence"}, {"decoders", std::move(decoders)}};
  if (!vocabulary.scores.empty()) {
    parts.merges = MergesByScore(vocabulary);
    return parts;
  }
  // Gemma 4's merges do not cross the border of a run of line feeds.
  parts.pre_tokenizer = {{"type", "Split"},
                         {"pattern", {{"Regex", "\\n+"}}},
                         {"behavior", "Isolated"},
                         {"invert", false}};
  parts.merges.assign(vocabulary.merges.begin(), vocabulary.merges.end());
  return parts;
}

}  // namespace orcd
