// For tests: rules of the library's kinds, and a small vocabulary with tokens of several
// characters.
#ifndef ORCD_RUNTIME_CONSTRAINT_LLG_RULES_FOR_TEST_H_
#define ORCD_RUNTIME_CONSTRAINT_LLG_RULES_FOR_TEST_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/constraint/llg_rule.h"
#include "runtime/constraint/llg_vocabulary.h"
#include "runtime/text/byte_map.h"
#include "runtime/text/small_vocabulary_for_test.h"
#include "runtime/text/tokenizer.h"

namespace orcd {

// The 256 bytes, words and marks of JSON, two tokens that end the generation, a control token and
// one that is spelled in texts.
class JsonVocabulary {
 public:
  JsonVocabulary() {
    for (const char* word :
         {"true",    "false", "null",   "name",    "value",   "{\"",   "\":",     "\",",
          "\"}",     "},",    " \"",    "  ",      "\n",      "the",   " the",    "red",
          "reddish", "green", "10",     "100",     "2024",    "-0",    "ab",      "abc",
          "aa",      "aaaa",  "é",      "日本",    "\\n",     "\\u00", "[]",      "{}",
          "[{",      "}]",    "\u2028", "a\u2028", "\u2029b", "a\x7f", "\x7f\x7f"}) {
      AddWord(word);
    }
    end = small_.Add("<|im_end|>", TokenType::kControl);
    other_end = small_.Add("<|endoftext|>", TokenType::kControl);
    control = small_.Add("<|im_start|>", TokenType::kControl);
    call = small_.Add("<tool_call>", TokenType::kUserDefined);
    small_.Add("unused", TokenType::kUnused);
    Vocabulary view = small_.View();
    view.eos_id = end;
    auto made = Tokenizer::Create(view);
    EXPECT_TRUE(made.ok()) << made.status();
    tokenizer = *std::move(made);
    EXPECT_TRUE(tokenizer->IsEog(end) && tokenizer->IsEog(other_end));
    auto library = LlgVocabulary::Create(*tokenizer);
    EXPECT_TRUE(library.ok()) << library.status();
    llg = *std::move(library);
  }

  static const JsonVocabulary& Get() {
    static const JsonVocabulary vocabulary;
    return vocabulary;
  }

  std::string Text(const std::vector<int32_t>& tokens) const {
    std::string text;
    for (const int32_t token : tokens) text += tokenizer->TokenBytes(token);
    return text;
  }

  int32_t end;
  int32_t other_end;
  int32_t control;
  int32_t call;
  std::unique_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const LlgVocabulary> llg;

 private:
  void AddWord(std::string_view word) {
    std::string left;
    for (const char byte : word) {
      const std::string right(SpellByte(static_cast<uint8_t>(byte)));
      if (!left.empty() && words_.insert(left + right).second) small_.AddMerge(left, right);
      left += right;
    }
  }

  SmallVocabulary small_;
  std::set<std::string> words_;
};

inline absl::StatusOr<std::shared_ptr<const LlgRule>> TryRule(
    std::string type, std::string text, std::shared_ptr<ConstraintObserver> observer = nullptr,
    const ConstraintLimits& limits = {}) {
  const ConstraintSpec spec = {.rule = RegexRule{text}, .start = {}, .field = "constraint.rule"};
  return LlgRule::Compile(JsonVocabulary::Get().llg, spec, {std::move(type), std::move(text)},
                          limits, std::move(observer));
}

// Null, and a failure, if it cannot be compiled.
inline std::shared_ptr<const LlgRule> MakeRule(std::string type, std::string text) {
  auto rule = TryRule(std::move(type), std::move(text));
  EXPECT_TRUE(rule.ok()) << rule.status();
  return rule.ok() ? *std::move(rule) : nullptr;
}

// Type and text.
inline std::vector<std::pair<std::string, std::string>> VariedRules() {
  return {
      {"regex", "a+b?"},
      {"regex", "(red|reddish|green)( the (red|green)){0,3}"},
      {"regex", "[0-9]{4}-[0-9]{2}-[0-9]{2}"},
      {"regex", "é日本[é日本]*"},
      {"regex", ""},
      {"lark", "start: \"abc\" X \"aaaa the end\"\nX: /[0-9]+/"},
      {"lark", "start: a+\na: \"(\" start? \")\" | \"true\""},
      {"lark", "start: <|im_start|> \"name\" <|im_start|> /[a-z]*/"},
      {"lark", "start: text \"aaaa\"\ntext[stop=\"the\"]: /[a-z ]*/"},
      {"json_schema", R"({"type":"object"})"},
      {"json_schema", R"({"const":{"name":"the value","value":[true,false,null,100]},
                          "x-guidance":{"whitespace_flexible":false}})"},
      {"json_schema", R"({"enum":["red","reddish","green",100,1000,null,{"a":[]}]})"},
      {"json_schema", R"({"type":"array","items":{"type":"integer","minimum":-10,"maximum":2024},
                          "minItems":1,"maxItems":5})"},
      {"json_schema",
       R"({"type":"object","properties":{"name":{"type":"string","maxLength":8},
           "value":{"type":"number"},"é\n":{"type":"boolean"}},
           "required":["name","é\n"],"additionalProperties":false})"},
      {"json_schema",
       R"({"$defs":{"t":{"type":"object","properties":{"l":{"$ref":"#/$defs/t"},
           "r":{"anyOf":[{"$ref":"#/$defs/t"},{"type":"null"}]}},"required":["r"],
           "additionalProperties":false}},"$ref":"#/$defs/t"})"},
      {"json_schema", R"({"type":"string","format":"date-time"})"},
      {"json_schema", R"({"type":"string","pattern":"^(ab|abc){2,4}$"})"},
  };
}

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_LLG_RULES_FOR_TEST_H_
