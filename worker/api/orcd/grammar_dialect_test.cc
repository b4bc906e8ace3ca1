#include "worker/api/orcd/grammar_dialect.h"

#include "gtest/gtest.h"

namespace orcd {
namespace {

TEST(GrammarDialectTest, ALineThatDefinesByEbnfMakesItEbnf) {
  for (const char* ebnf : {"root ::= \"a\"", "# a grammar\nroot ::= \"a\"", "a\nroot ::=\n  \"a\"",
                           "root ::= \"a\" # the first\n"}) {
    EXPECT_EQ(GrammarOf(ebnf).dialect, GrammarDialect::kEbnf) << ebnf;
    EXPECT_EQ(GrammarOf(ebnf).grammar, ebnf);
  }
  for (const char* lark : {"", "\n\n", "start: \"a\"", "// root ::= \"a\"\nstart: \"a\"",
                           "start: \"a\" # not ::=\n"}) {
    EXPECT_EQ(GrammarOf(lark).dialect, GrammarDialect::kLark) << lark;
    EXPECT_EQ(GrammarOf(lark).grammar, lark);
  }
}

}  // namespace
}  // namespace orcd
