// Splits text into words by the regular expressions of a pre-tokenizer.
#ifndef ORCD_RUNTIME_TEXT_WORD_SPLITTER_H_
#define ORCD_RUNTIME_TEXT_WORD_SPLITTER_H_

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "runtime/text/pre_tokenizer.h"

namespace re2 {
class RE2;
}

namespace orcd {

// The compiled expressions of a PreTokenizer. Any thread may call. They are run by RE2, whose
// automata never backtrack.
class WordSplitter {
 public:
  // Takes milliseconds.
  explicit WordSplitter(const PreTokenizer& pre_tokenizer);
  WordSplitter(WordSplitter&&) noexcept;
  ~WordSplitter();

  // Takes a word and returns true. A piece that is not yet a word it may take as well, if it knows
  // that the expressions to come do not split it; it returns false if it did not.
  using Take = absl::FunctionRef<bool(std::string_view piece, bool is_word)>;

  // Calls `take` with each word of `text`, which is valid UTF-8, in order. No word is empty, and
  // every text is the concatenation of its words. A word alone is one word, unless an expression
  // has $. Takes time linear in the length of `text`.
  void Split(std::string_view text, Take take) const { SplitFrom(0, text, take); }

 private:
  using TakePiece = absl::FunctionRef<void(std::string_view piece)>;
  struct Pass {
    std::unique_ptr<const re2::RE2> expression;
    // True if the pattern ends in kSpaceRuns, which is no part of `expression`. Such a pattern
    // leaves few characters between its matches.
    bool takes_space_runs;
  };

  // Splits `text` by passes_[pass] and those after it.
  void SplitFrom(size_t pass, std::string_view text, Take take) const;
  // Calls `take` with the matches of an expression and the stretches between them.
  static void SplitBySearch(const re2::RE2& expression, std::string_view text, TakePiece take);
  void SplitWithSpaceRuns(const re2::RE2& expression, std::string_view text, TakePiece take) const;
  // The end of the white space at text[begin], without the last character of several that a word
  // follows; `begin` if there is none.
  size_t EndOfSpaceRun(std::string_view text, size_t begin) const;

  std::vector<Pass> passes_;
  std::unique_ptr<const re2::RE2> spaces_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_TEXT_WORD_SPLITTER_H_
