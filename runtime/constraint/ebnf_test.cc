#include "runtime/constraint/ebnf.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;

std::string Lark(const std::string& grammar) {
  const auto part = EbnfToLark(grammar, "f");
  EXPECT_TRUE(part.ok()) << part.status();
  return part.ok() ? part->definitions + part->expression : "";
}

TEST(EbnfTest, MakesATerminalOfAGrammarWithoutRecursion) {
  EXPECT_EQ(Lark(R"(root ::= "a" b* | c
                    b ::= [a-c_]
                    c ::= "x"{2,3} "y"{4} ("z" | "")? .)"),
            "G0: \"a\" (G1*) | G2\n"
            "G1: /[\\u{61}-\\u{63}\\u{5F}]/\n"
            "G2: (\"x\"{2,3}) (\"y\"{4,4}) ((\"z\" | \"\")?) /(?s:.)/\n"
            "G0");
}

TEST(EbnfTest, JoinsWhatDoesNotRecurWithinRulesThatDo) {
  EXPECT_EQ(Lark("value ::= \"[\" ws (value (\",\" ws value)*)? \"]\" ws | num\n"
                 "ws ::= [ \\n]*\n"
                 "num ::= [0-9]+ ws\n"
                 "root ::= value"),
            "G_0: \"[\" G1\n"
            "G_1: \",\" G1\n"
            "G_2: \"]\" G1\n"
            "g0: G_0 ((g0 ((G_1 g0)*))?) G_2 | G2\n"
            "G1: /[\\u{20}\\u{A}]/*\n"
            "G2: (/[\\u{30}-\\u{39}]/+) G1\n"
            "g3: g0\n"
            "g3");
}

TEST(EbnfTest, ReadsEscapes) {
  EXPECT_EQ(Lark(R"(root ::= "\"\\\n\t\x41\u00e9\U0001F600\[")"),
            "G0: \"\\\"\\\\\\u000a\\u0009Aé😀[\"\nG0");
  EXPECT_EQ(Lark(R"(root ::= [^\]\\\-\x00-\u001F-] [é-日] [-a] [^])"),
            "G0: /[^\\u{5D}\\u{5C}\\u{2D}\\u{0}-\\u{1F}\\u{2D}]/ /[\\u{E9}-\\u{65E5}]/ "
            "/[\\u{2D}\\u{61}]/ /(?s:.)/\nG0");
}

TEST(EbnfTest, ReadsLayout) {
  const std::string one_line = Lark(R"(root ::= "a" | "b" c c ::= "#" )");
  EXPECT_EQ(Lark("# comment\n root   ::=\n  # more\n \"a\"\n | \"b\"\n   c # c ::= \"d\"\r\n"
                 "c::=\"#\""),
            one_line);
  EXPECT_EQ(one_line, "G0: \"a\" | \"b\" G1\nG1: \"#\"\nG0");
  EXPECT_EQ(Lark("root ::= | \"a\" root"), "g0: \"\" | \"a\" g0\ng0");
  EXPECT_EQ(Lark("root ::= \"a\" * ? {2} {,3} {4,} {1}"),
            "G0: (((((\"a\"*)?){2,2}){0,3}){4,})\nG0");
  EXPECT_EQ(Lark("root ::= \"a\"{0} \"b\""), "G0: (\"\") \"b\"\nG0");
}

TEST(EbnfTest, KeepsGroupsFlatEnoughForTheLibrary) {
  std::string grammar = "root ::= ";
  for (int i = 0; i < 40; ++i) grammar += "(\"a\" ";
  grammar += "\"b\"";
  for (int i = 0; i < 40; ++i) grammar += ")?";
  const std::string lark = Lark(grammar);
  int open = 0;
  int most = 0;
  for (const char c : lark) {
    open += c == '(' ? 1 : c == ')' ? -1 : 0;
    most = std::max(most, open);
  }
  EXPECT_EQ(open, 0);
  EXPECT_LE(most, 9);
}

TEST(EbnfTest, RefusesByLine) {
  struct Case {
    const char* grammar;
    const char* reason;
    const char* message;
  };
  const Case cases[] = {
      {"", "CONSTRAINT_INVALID", "no rule `root`"},
      {"a ::= \"b\"", "CONSTRAINT_INVALID", "no rule `root`"},
      {"root ::= \"a\"\n\nb", "CONSTRAINT_INVALID", "line 3: there is no rule `b`"},
      {"root ::= a\n\"b\" c\n", "CONSTRAINT_INVALID", "line 1: there is no rule `a`"},
      {"root ::= \"a\"\nroot ::= \"b\"", "CONSTRAINT_INVALID", "line 2: the rule `root`"},
      {"start: \"a\"", "CONSTRAINT_INVALID", "line 1: expected a rule"},
      {"root ::= \"a\n\n", "CONSTRAINT_INVALID", "line 3: a literal"},
      {"root ::= [a", "CONSTRAINT_INVALID", "line 1: a set"},
      {"root ::= []", "CONSTRAINT_INVALID", "no characters"},
      {"root ::= [z-a]", "CONSTRAINT_INVALID", "line 1: a range"},
      {"root ::= \"a\"\n  (\"b\"\n", "CONSTRAINT_INVALID", "line 3: expected `)`"},
      {"root ::= \"a\")", "CONSTRAINT_INVALID", "unexpected `)`"},
      {"root ::= *", "CONSTRAINT_INVALID", "unexpected `*`"},
      {"root ::= é", "CONSTRAINT_INVALID", "unexpected `é`"},
      {"root ::= \"a\"{3,2}", "CONSTRAINT_INVALID", "empty"},
      {"root ::= \"a\"{,}", "CONSTRAINT_INVALID", "no count"},
      {"root ::= \"a\"{x}", "CONSTRAINT_INVALID", "a count"},
      {"root ::= \"a\"{2", "CONSTRAINT_INVALID", "expected `}`"},
      {"root ::= \"\\q\"", "CONSTRAINT_INVALID", "unknown escape"},
      {"root ::= \"\\x4\"", "CONSTRAINT_INVALID", "hexadecimal"},
      {"root ::= \"\\ud800\"", "CONSTRAINT_INVALID", "no character"},
      {"root ::= \"\\", "CONSTRAINT_INVALID", "backslash"},
      {"root ::= (= \"a\") \"a\"", "CONSTRAINT_UNSUPPORTED", "look-ahead"},
      {"root ::= \"a\"\n <[12]>", "CONSTRAINT_UNSUPPORTED", "line 2: tokens"},
      {"root ::= \"a\"{2000000}", "CONSTRAINT_TOO_LARGE", "repeated"},
  };
  for (const Case& c : cases) {
    const auto part = EbnfToLark(c.grammar, "f");
    ASSERT_FALSE(part.ok()) << c.grammar;
    EXPECT_EQ(GetErrorDetails(part.status()).reason, c.reason) << c.grammar;
    EXPECT_THAT(std::string(part.status().message()), HasSubstr(c.message)) << c.grammar;
  }
}

TEST(EbnfTest, LeavesOutWhatNeverEnds) {
  EXPECT_EQ(Lark("root ::= a | b\na ::= \"x\" a\nb ::= \"y\""), "G0: G2\nG2: \"y\"\nG0");
  EXPECT_EQ(Lark("root ::= \"a\" (b \"c\" | root)? b{0,2}\nb ::= \"x\" b{1,2}"),
            "g0: \"a\" ((g0)?) \"\"\ng0");
  EXPECT_EQ(Lark("root ::= \"a\" | \"b\" root"), "g0: \"a\" | \"b\" g0\ng0");
  for (const char* grammar :
       {"root ::= [a-c] root", "root ::= root", "root ::= a\na ::= \"x\" b | a\nb ::= a \"y\"+",
        "root ::= \"a\" (\"b\" | root){1,2} (root)+"}) {
    const absl::Status status = EbnfToLark(grammar, "f").status();
    EXPECT_EQ(GetErrorDetails(status).reason, "CONSTRAINT_UNSATISFIABLE") << grammar;
  }
}

TEST(EbnfTest, TakesHostileGrammars) {
  const auto reason = [](const std::string& grammar) {
    return GetErrorDetails(EbnfToLark(grammar, "f").status()).reason;
  };
  EXPECT_EQ(reason("root ::= " + std::string(100'000, '(')), "CONSTRAINT_TOO_LARGE");
  EXPECT_EQ(reason("root ::= \"a\"" + std::string(100'000, '*')), "CONSTRAINT_TOO_LARGE");
  std::string rules = "root ::= a0\n";
  for (int i = 0; i < 3000; ++i) {
    rules += "a" + std::to_string(i) + " ::= a" + std::to_string(i + 1) + "\n";
  }
  EXPECT_EQ(reason(rules), "CONSTRAINT_TOO_LARGE");
  std::string parts = "root ::= \"c\" | ";
  for (int i = 0; i < 3000; ++i) parts += "\"a\" \"b\" root ";
  EXPECT_EQ(reason(parts), "CONSTRAINT_TOO_LARGE");
  std::string choices = "root ::= \"a\"";
  for (int i = 0; i < 20'000; ++i) choices += " | \"b\"";
  EXPECT_EQ(reason(choices), "");
}

}  // namespace
}  // namespace orcd
