// The dialect of a grammar whose protocol does not name it.
#ifndef ORCD_WORKER_API_ORCD_GRAMMAR_DIALECT_H_
#define ORCD_WORKER_API_ORCD_GRAMMAR_DIALECT_H_

#include <string>

#include "runtime/constraint/constraint_spec.h"

namespace orcd {

// EBNF if a line has `::=` before any comment, otherwise Lark, as vLLM tells them apart.
GrammarRule GrammarOf(std::string grammar);

}  // namespace orcd

#endif  // ORCD_WORKER_API_ORCD_GRAMMAR_DIALECT_H_
