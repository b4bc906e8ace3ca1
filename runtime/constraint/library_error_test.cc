#include "runtime/constraint/library_error.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

ConstraintSpec SchemaWithFaults() {
  return {.rule = JsonSchemaRule{R"({"properties":{"a":{"oneOf":[{},{}]},"b":{"maxProperties":1},
                                     "c":{"pattern":"x"}}})"},
          .start = {},
          .field = "f"};
}

LibraryError Says(std::string text) { return {.text = std::move(text)}; }

TEST(LibraryErrorTest, SaysWhyAndWhere) {
  struct Case {
    const char* text;
    const char* reason;
    const char* message;
  };
  const Case cases[] = {
      {"oneOf constraints are not supported. Enable 'coerce_one_of'", "CONSTRAINT_UNSUPPORTED",
       "f: /properties/a/oneOf: two of the schemas may accept the same document"},
      {"min/maxProperties only supported when all keys", "CONSTRAINT_UNSUPPORTED",
       "f: /properties/b/maxProperties: only supported where all"},
      {"Unsatisfiable schema: required property 'a' is unsatisfiable\n  at b",
       "CONSTRAINT_UNSATISFIABLE",
       "f: no document fulfils the schema: required property 'a' is unsatisfiable"},
      {"Unsatisfiable schema: schema is false\n  while processing json-schema:///#/$defs/a~1b",
       "CONSTRAINT_UNSATISFIABLE",
       "f: /$defs/a~1b: no document fulfils the schema: schema is false"},
      {"initial lexer configuration (grammar) too big (limit for this grammar: 9)",
       "CONSTRAINT_TOO_LARGE", "f: its expressions take more work"},
      {"fuel exhausted when checking relevance of lexemes (9)", "CONSTRAINT_TOO_LARGE",
       "f: its expressions take more work"},
      {"Unable to determine if regex is empty: x", "CONSTRAINT_TOO_LARGE",
       "f: /properties/c/pattern: it takes too long"},
      {"invalid regex \"(\": regex parse error:\n    (\n    ^\nerror: unclosed group",
       "CONSTRAINT_INVALID", "f: /properties/c/pattern: regex parse error: unclosed group"},
      {"NoExtensionBias", "CONSTRAINT_UNSATISFIABLE", "f: no output"},
      {"panic: index out of bounds: too many", "CONSTRAINT_UNSUPPORTED", "f: cannot be compiled"},
      {"2(5): Expected token ':'\n 1 | start", "CONSTRAINT_INVALID", "f: 2(5): Expected token ':'"},
  };
  for (const Case& c : cases) {
    const absl::Status status = RefusalOf(SchemaWithFaults(), Says(c.text));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(GetErrorDetails(status).reason, c.reason) << c.text;
    EXPECT_EQ(GetErrorDetails(status).field, "f");
    EXPECT_THAT(std::string(status.message()), StartsWith(c.message));
  }
}

TEST(LibraryErrorTest, NamesTheBoundOfACompilation) {
  const LibraryError memory = {.stop = LibraryStop::kMemory, .most_bytes = 32 << 20};
  EXPECT_EQ(GetErrorDetails(RefusalOf(SchemaWithFaults(), memory)).reason, "CONSTRAINT_TOO_LARGE");
  EXPECT_THAT(std::string(RefusalOf(SchemaWithFaults(), memory).message()),
              HasSubstr("more than 32 MiB of memory"));
  const LibraryError time = {.stop = LibraryStop::kTime, .most_time = absl::Seconds(2)};
  EXPECT_EQ(GetErrorDetails(RefusalOf(SchemaWithFaults(), time)).reason, "CONSTRAINT_TOO_LARGE");
  EXPECT_THAT(std::string(RefusalOf(SchemaWithFaults(), time).message()), HasSubstr("the 2s"));
  const LibraryError all = {.stop = LibraryStop::kAllMemory, .most_held = 512 << 20};
  const absl::Status busy = RefusalOf(SchemaWithFaults(), all);
  EXPECT_EQ(busy.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetails(busy).reason, "CONSTRAINT_LIMIT");
  EXPECT_EQ(GetErrorDetails(busy).subject, "constraints:memory");
  EXPECT_THAT(std::string(busy.message()), HasSubstr("512 MiB"));
}

TEST(LibraryErrorTest, NamesTheFailureOfARuleInUse) {
  using absl::StatusCode;
  struct Case {
    LibraryError error;
    StatusCode code;
    const char* reason;
    const char* message;
  };
  const Case cases[] = {
      {Says("token \"x\" doesn't satisfy the grammar; byte 'x' fails parse"),
       StatusCode::kInvalidArgument, "CONSTRAINT_FAILED",
       "the rule of f failed after 7 tokens: the token does not continue it"},
      {Says("lexer error: too many expressions constructed"), StatusCode::kResourceExhausted,
       "CONSTRAINT_FAILED", "the rule of f failed after 7 tokens: the next token takes more work"},
      {Says("lexer error: too many states: 9 >= 8"), StatusCode::kResourceExhausted,
       "CONSTRAINT_FAILED", "the rule of f failed after 7 tokens: its expressions have too many"},
      {Says("parser error: Too many items (limit 9; mask)"), StatusCode::kResourceExhausted,
       "CONSTRAINT_FAILED", "the rule of f failed after 7 tokens: it has too many readings"},
      {Says("panic: assertion failed"), StatusCode::kInvalidArgument, "CONSTRAINT_FAILED",
       "the rule of f failed after 7 tokens: its attributes cannot"},
      {Says("NoExtensionBias"), StatusCode::kInvalidArgument, "CONSTRAINT_FAILED",
       "the rule of f failed after 7 tokens: nothing may follow"},
      {Says("else"), StatusCode::kInternal, "CONSTRAINT_FAILED",
       "the rule of f failed after 7 tokens: else"},
      {{.stop = LibraryStop::kMemory, .most_bytes = 64 << 20},
       StatusCode::kResourceExhausted,
       "CONSTRAINT_FAILED",
       "the rule of f failed after 7 tokens: its state takes more than 64 MiB"},
      {{.stop = LibraryStop::kAllMemory, .most_held = 512 << 20},
       StatusCode::kResourceExhausted,
       "CONSTRAINT_LIMIT",
       "f: the constraints of all requests hold the 512 MiB"},
  };
  for (const Case& c : cases) {
    const absl::Status status = FailureOf("f", 7, c.error);
    EXPECT_EQ(status.code(), c.code) << status;
    EXPECT_EQ(GetErrorDetails(status).reason, c.reason) << status;
    EXPECT_THAT(std::string(status.message()), StartsWith(c.message));
  }
}

TEST(LibraryErrorTest, TextsAreALineOfUtf8) {
  std::string text = "x";
  for (int i = 0; i < 200; ++i) text += "日\xff";
  for (const std::string& begin : {std::string(), std::string("\n \n"), std::string("\xe6\x97")}) {
    for (const absl::Status& status : {RefusalOf(SchemaWithFaults(), Says(begin + text + "\nmore")),
                                       FailureOf("f", 1, Says(begin + text + "\nmore"))}) {
      const std::string message(status.message());
      EXPECT_EQ(FindInvalidUtf8(message), message.size());
      EXPECT_EQ(message.find('\n'), std::string::npos);
      EXPECT_LT(message.size(), 400u);
    }
  }
}

}  // namespace
}  // namespace orcd
