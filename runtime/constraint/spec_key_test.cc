#include "runtime/constraint/spec_key.h"

#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace orcd {
namespace {

TEST(SpecKeyTest, DiffersWhereTheRuleDiffers) {
  const std::vector<ConstraintSpec> specs = {
      {.rule = JsonSchemaRule{"{}"}, .start = {}},
      {.rule = JsonSchemaRule{"{ }"}, .start = {}},
      {.rule = JsonSchemaRule{"{}"}, .start = StartAfterToken{}},
      {.rule = JsonSchemaRule{"{}"}, .start = StartAfterString{"x"}},
      {.rule = JsonSchemaRule{"{}"}, .start = StartAfterString{"y"}},
      {.rule = JsonSchemaRule{"{}"}, .start = {}, .field = "other"},
      {.rule = JsonObjectRule{}, .start = {}},
      {.rule = RegexRule{"{}"}, .start = {}},
      {.rule = GrammarRule{GrammarDialect::kLark, "{}"}, .start = {}},
      {.rule = GrammarRule{GrammarDialect::kEbnf, "{}"}, .start = {}},
      {.rule = ChoiceRule{{"{}"}}, .start = {}},
      {.rule = ChoiceRule{{"{", "}"}}, .start = {}},
      {.rule = ChoiceRule{{"", "{}"}}, .start = {}},
      {.rule = ChoiceRule{{"1:a", "b"}}, .start = {}},
      {.rule = ChoiceRule{{"1:a1:b"}}, .start = {}},
      {.rule = StructuralTagRule{{{"a", "b", "c"}}, {"a", "b", "c", "d"}}, .start = {}},
      {.rule = StructuralTagRule{{{"a", "b", "c"}, {"a", "b", "c"}}, {"d"}}, .start = {}},
      {.rule = StructuralTagRule{{{"a", "b", "c"}}, {"a", "b", "c", "d"}, true, false},
       .start = {}},
      {.rule = StructuralTagRule{{{"a", "b", "c"}}, {"a", "b", "c", "d"}, false, true},
       .start = {}},
  };
  std::set<std::string> keys;
  for (const ConstraintSpec& spec : specs) {
    EXPECT_TRUE(keys.insert(KeyOf(spec)).second) << KeyOf(spec);
    EXPECT_FALSE(keys.insert(KeyOf(spec)).second);
  }
}

TEST(SpecKeyTest, IsTheSameForEveryStartToken) {
  EXPECT_EQ(KeyOf({.rule = RegexRule{"a"}, .start = StartAfterToken{1}}),
            KeyOf({.rule = RegexRule{"a"}, .start = StartAfterToken{2}}));
}

TEST(SpecKeyTest, CountsAllTexts) {
  EXPECT_EQ(TextBytes({.rule = JsonObjectRule{}, .start = StartAfterString{"abc"}}), 3u);
  EXPECT_EQ(TextBytes({.rule = ChoiceRule{{"ab", "c"}}, .start = {}}), 3u);
  EXPECT_EQ(TextBytes({.rule = StructuralTagRule{{{"a", "bc", "d"}}, {"ef"}}, .start = {}}), 6u);
}

}  // namespace
}  // namespace orcd
