#include "worker/api/orcd/grammar_dialect.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace orcd {
namespace {

bool DefinesByEbnf(std::string_view line) {
  const std::string_view code = line.substr(0, std::min(line.find('#'), line.find("//")));
  return code.find("::=") != std::string_view::npos;
}

bool IsEbnf(std::string_view grammar) {
  while (!grammar.empty()) {
    const size_t end = std::min(grammar.find('\n'), grammar.size());
    if (DefinesByEbnf(grammar.substr(0, end))) return true;
    grammar.remove_prefix(std::min(end + 1, grammar.size()));
  }
  return false;
}

}  // namespace

GrammarRule GrammarOf(std::string grammar) {
  const GrammarDialect dialect = IsEbnf(grammar) ? GrammarDialect::kEbnf : GrammarDialect::kLark;
  return {.dialect = dialect, .grammar = std::move(grammar)};
}

}  // namespace orcd
