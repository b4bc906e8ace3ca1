#include "runtime/text/word_splitter.h"

#include <re2/re2.h>

#include <string>

#include "absl/strings/str_replace.h"

namespace orcd {
namespace {

using re2::RE2;
using re2::StringPiece;

// The states of an automaton over all of Unicode, which RE2 makes as texts need them. If they did
// not fit, RE2 would throw them away and become slow.
constexpr int64_t kMaxBytes = 64 << 20;

std::unique_ptr<const RE2> Compile(std::string_view pattern) {
  RE2::Options options;
  options.set_max_mem(kMaxBytes);
  options.set_never_capture(true);
  // RE2 takes [sS] for an s in either case, which it finds in U+017F too if it is an alternative.
  const std::string written = absl::StrReplaceAll(WriteOutClasses(pattern), {{"[sS]", "(?:s|S)"}});
  return std::make_unique<const RE2>(written, options);
}

bool ContinuesCharacter(char byte) { return (byte & 0xC0) == 0x80; }

// The length of the match that begins at text[begin]; 0 if there is none.
size_t MatchAt(const RE2& expression, std::string_view text, size_t begin) {
  StringPiece match;
  const StringPiece piece(text.data(), text.size());
  if (!expression.Match(piece, begin, text.size(), RE2::ANCHOR_START, &match, 1)) return 0;
  return match.size();
}

}  // namespace

WordSplitter::WordSplitter(const PreTokenizer& pre_tokenizer) : spaces_(Compile(R"(\s+)")) {
  for (std::string_view pattern : pre_tokenizer.patterns) {
    const bool takes_space_runs = pattern.ends_with(kSpaceRuns);
    if (takes_space_runs) pattern.remove_suffix(kSpaceRuns.size());
    passes_.push_back({Compile(pattern), takes_space_runs});
  }
}

WordSplitter::WordSplitter(WordSplitter&&) noexcept = default;
WordSplitter::~WordSplitter() = default;

void WordSplitter::SplitFrom(size_t pass, std::string_view text, Take take) const {
  const bool is_last = pass + 1 == passes_.size();
  const auto split_further = [&](std::string_view piece) {
    if (!take(piece, is_last)) SplitFrom(pass + 1, piece, take);
  };
  const auto& [expression, takes_space_runs] = passes_[pass];
  if (takes_space_runs) {
    SplitWithSpaceRuns(*expression, text, split_further);
  } else {
    SplitBySearch(*expression, text, split_further);
  }
}

void WordSplitter::SplitBySearch(const RE2& expression, std::string_view text, TakePiece take) {
  const StringPiece piece(text.data(), text.size());
  StringPiece match;
  size_t done = 0;
  while (done < text.size() &&
         expression.Match(piece, done, text.size(), RE2::UNANCHORED, &match, 1)) {
    const size_t begin = match.data() - text.data();
    if (begin > done) take(text.substr(done, begin - done));
    take(text.substr(begin, match.size()));
    done = begin + match.size();
  }
  if (done < text.size()) take(text.substr(done));
}

void WordSplitter::SplitWithSpaceRuns(const RE2& expression, std::string_view text,
                                      TakePiece take) const {
  size_t done = 0;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin + MatchAt(expression, text, begin);
    if (end == begin) end = EndOfSpaceRun(text, begin);
    if (end == begin) {
      // No alternative begins with this character.
      do {
        ++begin;
      } while (begin < text.size() && ContinuesCharacter(text[begin]));
      continue;
    }
    if (begin > done) take(text.substr(done, begin - done));
    take(text.substr(begin, end - begin));
    begin = done = end;
  }
  if (done < text.size()) take(text.substr(done));
}

size_t WordSplitter::EndOfSpaceRun(std::string_view text, size_t begin) const {
  const size_t end = begin + MatchAt(*spaces_, text, begin);
  if (end == begin || end == text.size()) return end;
  size_t last = end - 1;
  while (ContinuesCharacter(text[last])) --last;
  return last > begin ? last : end;
}

}  // namespace orcd
