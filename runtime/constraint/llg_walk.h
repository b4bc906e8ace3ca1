// A short output of a rule, which shows at compilation what the rule costs.
#ifndef ORCD_RUNTIME_CONSTRAINT_LLG_WALK_H_
#define ORCD_RUNTIME_CONSTRAINT_LLG_WALK_H_

#include <cstddef>

#include "runtime/constraint/llg_state.h"
#include "runtime/constraint/llg_vocabulary.h"

namespace orcd {

struct LlgWalk {
  // Masks that were made, the first after the tokens with which the output must begin.
  int masks = 0;
  // Tokens that the state accepted.
  size_t tokens = 0;
};

// Makes a dozen masks along an output that passes through the rule's parts soon: strings and
// numbers end as they can. The lexer keeps the states that it computes for them, which take most of
// the time of a mask; clones of the state have them from the start. The walk is the same for each
// compilation of a rule, and its end is not an error.
LlgWalk WalkAhead(const LlgVocabulary& vocabulary, LlgState& state);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_LLG_WALK_H_
