// Reads a grammar of characters into a tree.
#ifndef ORCD_RUNTIME_CONSTRAINT_EBNF_READER_H_
#define ORCD_RUNTIME_CONSTRAINT_EBNF_READER_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace orcd {

struct EbnfNode {
  enum class Kind {
    // A literal or a set of characters: `text` is Lark.
    kCharacters,
    kRule,
    // All of `parts`, one after the other; nothing if there are none.
    kSequence,
    // One of `parts`.
    kChoice,
    // The one of `parts`, `min` to `max` times.
    kRepeat,
  };
  static constexpr int kNoMax = -1;

  Kind kind = Kind::kSequence;
  std::string text = {};
  // Index of the rule.
  int rule = -1;
  int min = 0;
  int max = kNoMax;
  std::vector<EbnfNode> parts = {};
};

struct EbnfRule {
  std::string name;
  EbnfNode body;
};

struct EbnfGrammar {
  // Every rule that one refers to is there.
  std::vector<EbnfRule> rules;
  // Index of `root`.
  int root = -1;
};

// See EbnfToLark.
absl::StatusOr<EbnfGrammar> ReadEbnf(std::string_view grammar, const std::string& field);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_EBNF_READER_H_
