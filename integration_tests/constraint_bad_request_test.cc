// Constraints that the worker must refuse over the wire, with the right status, reason and field
// and a message that says what to change. The worker goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "integration_tests/constraint_fixture.h"
#include "integration_tests/errors_table.h"
#include "integration_tests/infer_client.h"
#include "integration_tests/vllm_client.h"

namespace orcd::testing {
namespace {

using ::grpc::StatusCode;

struct BadConstraint {
  std::string name;
  std::function<void(v1::Constraint&)> set;
  const char* reason;
  // The violation names this field, or a part of it.
  const char* field;
};

BadConstraint BadSchema(const std::string& name, const std::string& schema, const char* reason) {
  return {name, [schema](v1::Constraint& c) { c.set_json_schema(schema); }, reason,
          "constraint.json_schema"};
}

BadConstraint BadGrammar(const std::string& name, v1::GrammarDialect dialect,
                         const std::string& text, const char* reason) {
  return {name,
          [dialect, text](v1::Constraint& c) {
            c.mutable_grammar()->set_dialect(dialect);
            c.mutable_grammar()->set_text(text);
          },
          reason, "constraint.grammar"};
}

std::vector<BadConstraint> BadSchemas() {
  constexpr const char* kInvalid = "CONSTRAINT_INVALID";
  constexpr const char* kUnsupported = "CONSTRAINT_UNSUPPORTED";
  constexpr const char* kTooLarge = "CONSTRAINT_TOO_LARGE";
  std::string nested = R"({"type": "string"})";
  for (int i = 0; i < 100; ++i)
    nested = absl::StrCat(R"({"type": "array", "items": )", nested, "}");
  return {
      BadSchema("no JSON", "{type: object}", kInvalid),
      BadSchema("empty schema text", "", kInvalid),
      BadSchema("a keyword twice", R"({"type": "object", "type": "array"})", kInvalid),
      BadSchema("type of another type", R"({"type": 5})", kInvalid),
      BadSchema("pattern that is no expression", R"({"type": "string", "pattern": "("})", kInvalid),
      BadSchema("not", R"({"not": {"type": "string"}})", kUnsupported),
      BadSchema("uniqueItems deep inside",
                R"({"properties": {"a/b": {"type": "array", "uniqueItems": true}}})", kUnsupported),
      BadSchema("if", R"({"if": {"type": "string"}, "then": {"maxLength": 3}})", kUnsupported),
      BadSchema("100 lists in each other", nested, kTooLarge),
      BadSchema("200 kB", absl::StrCat(R"({"const": ")", std::string(200'000, 'x'), "\"}"),
                kTooLarge),
      BadSchema("nothing is allowed", "false", "CONSTRAINT_UNSATISFIABLE"),
      BadSchema("recursion without an end",
                R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})",
                "CONSTRAINT_UNSATISFIABLE"),
      BadSchema("minimum over maximum", R"({"type": "integer", "minimum": 5, "maximum": 4})",
                "CONSTRAINT_UNSATISFIABLE"),
  };
}

std::vector<BadConstraint> OtherBadRules() {
  constexpr const char* kInvalid = "CONSTRAINT_INVALID";
  return {
      {"no rule", [](v1::Constraint&) {}, "INVALID_FIELD", "constraint"},
      {"json_object that is false", [](v1::Constraint& c) { c.set_json_object(false); },
       "INVALID_FIELD", "constraint.json_object"},
      {"regex that does not close", [](v1::Constraint& c) { c.set_regex("(a"); }, kInvalid,
       "constraint.regex"},
      {"no choices", [](v1::Constraint& c) { c.mutable_choice(); }, kInvalid, "constraint.choice"},
      {"empty choice", [](v1::Constraint& c) { c.mutable_choice()->add_choices(""); }, kInvalid,
       "constraint.choice"},
      BadGrammar("grammar without a dialect", v1::GRAMMAR_DIALECT_UNSPECIFIED, "start: \"a\"",
                 "INVALID_FIELD"),
      BadGrammar("EBNF without root", v1::GRAMMAR_DIALECT_EBNF, "a ::= \"b\"", kInvalid),
      BadGrammar("EBNF with an unknown rule", v1::GRAMMAR_DIALECT_EBNF, "root ::= a", kInvalid),
      BadGrammar("EBNF that never ends", v1::GRAMMAR_DIALECT_EBNF, "root ::= \"a\" root",
                 "CONSTRAINT_UNSATISFIABLE"),
      BadGrammar("Lark with a schema", v1::GRAMMAR_DIALECT_LARK, "start: %json {}",
                 "CONSTRAINT_UNSUPPORTED"),
      BadGrammar("Lark that is none", v1::GRAMMAR_DIALECT_LARK, "start", kInvalid),
      {"no tags", [](v1::Constraint& c) { c.mutable_structural_tags()->add_triggers("<"); },
       kInvalid, "constraint.structural_tags"},
      {"tag that no trigger begins",
       [](v1::Constraint& c) {
         c.mutable_structural_tags()->add_triggers("<f");
         c.mutable_structural_tags()->add_tags()->set_begin("[f]");
         c.mutable_structural_tags()->mutable_tags(0)->set_end("[/f]");
       },
       kInvalid, "constraint.structural_tags"},
      {"start after a token outside the vocabulary",
       [](v1::Constraint& c) {
         c.set_regex("a");
         c.set_after_token(1024);
       },
       "INVALID_FIELD", "constraint.after_token"},
      {"start after an empty text",
       [](v1::Constraint& c) {
         c.set_regex("a");
         c.set_after_string("");
       },
       "INVALID_FIELD", "constraint.after_string"},
  };
}

class ConstraintBadRequestTest : public ConstraintTest {
 protected:
  static void ExpectRefused(const RpcError& error, const char* reason, const std::string& field) {
    EXPECT_TRUE(IsError(error, StatusCode::INVALID_ARGUMENT, reason));
    ASSERT_EQ(error.fields.size(), 1u) << error;
    EXPECT_TRUE(error.fields[0].starts_with(field)) << error;
    EXPECT_GE(error.message.size(), 15u) << "says too little";
    EXPECT_LE(error.message.size(), 600u) << "says too much";
  }
};

TEST_F(ConstraintBadRequestTest, EachIsRefusedAndTheWorkerGoesOn) {
  ASSERT_NO_FATAL_FAILURE(StartConstrained());
  if (IsSkipped()) return;
  std::vector<BadConstraint> cases = BadSchemas();
  const std::vector<BadConstraint> others = OtherBadRules();
  cases.insert(cases.end(), others.begin(), others.end());
  ErrorsTable table("Bad constraints");
  for (const BadConstraint& bad : cases) {
    SCOPED_TRACE(bad.name);
    v1::GenerateRequest request = TextRequest("Hello", 30);
    bad.set(*request.mutable_constraint());
    // An error that was found by compiling is remembered.
    for (int i = 0; i < 2; ++i) {
      const RpcError error = client().Generate(request).error;
      ASSERT_NO_FATAL_FAILURE(ExpectRefused(error, bad.reason, bad.field));
      if (i == 0) table.Add(bad.name, error);
    }
  }
  EXPECT_TRUE(IsComplete(client().Generate(Choice({"yes"}))));
  EXPECT_TRUE(client().WaitForQuiet());
  EXPECT_TRUE(table.IsInTheDocument());
}

TEST_F(ConstraintBadRequestTest, OtherProtocolsNameTheirOwnFields) {
  ASSERT_NO_FATAL_FAILURE(StartConstrained());
  if (IsSkipped()) return;
  using Params = vllm_wire::SamplingParams;
  const struct {
    const char* field;
    std::function<void(Params&)> set;
    const char* reason = "CONSTRAINT_INVALID";
  } of_vllm[] = {
      {"json_schema", [](Params& p) { p.set_json_schema(""); }},
      {"json_schema", [](Params& p) { p.set_json_schema("{\"not\": {}}"); },
       "CONSTRAINT_UNSUPPORTED"},
      {"json_schema", [](Params& p) { p.set_json_schema(std::string(1 << 20, '{')); },
       "CONSTRAINT_TOO_LARGE"},
      {"regex", [](Params& p) { p.set_regex("(a"); }},
      {"grammar", [](Params& p) { p.set_grammar("root ::= a"); }},
      {"structural_tag", [](Params& p) { p.set_structural_tag("{}"); }},
      {"choice", [](Params& p) { p.mutable_choice(); }},
  };
  VllmClient vllm(client().channel());
  for (const auto& [field, set, reason] : of_vllm) {
    SCOPED_TRACE(field);
    vllm_wire::GenerateRequest request = ToVllm(TokenRequest({40}, 30), /*stream=*/false);
    set(*request.mutable_sampling_params());
    ASSERT_NO_FATAL_FAILURE(ExpectRefused(vllm.Generate(request).error, reason,
                                          absl::StrCat("sampling_params.", field)));
  }
  const struct {
    const char* field;
    const char* json;
    const char* reason = "CONSTRAINT_INVALID";
  } of_kserve[] = {
      {"json_schema", R"({"json_schema": "{"})"},
      {"guided_json", R"({"guided_json": {"not": {}}})", "CONSTRAINT_UNSUPPORTED"},
      {"structured_outputs.regex", R"({"structured_outputs": {"regex": "(a"}})"},
      {"choice", R"({"choice": []})"},
  };
  const auto kserve = inference::GRPCInferenceService::NewStub(client().channel());
  for (const auto& [field, json, reason] : of_kserve) {
    SCOPED_TRACE(json);
    ASSERT_NO_FATAL_FAILURE(ExpectRefused(Infer(*kserve, InferRequest("Hello", json)).error, reason,
                                          absl::StrCat("sampling_parameters.", field)));
  }
}

}  // namespace
}  // namespace orcd::testing
