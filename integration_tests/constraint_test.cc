// The output keeps the form that a request asks for, by every protocol.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "integration_tests/constraint_fixture.h"
#include "integration_tests/gguf_editor.h"
#include "integration_tests/http_get.h"
#include "integration_tests/infer_client.h"
#include "integration_tests/vllm_client.h"

namespace orcd::testing {
namespace {

using ::grpc::StatusCode;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// Every value is of an enum, so that random tokens complete it.
constexpr char kSchema[] = R"({"type": "object", "additionalProperties": false,
  "properties": {"name": {"enum": ["Ada", "Grace"]}, "age": {"enum": [36, 85]},
                 "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}},
  "required": ["name", "age", "tags"]})";

// True if the text is JSON that kSchema accepts, with the properties in its order.
::testing::AssertionResult FulfilsSchema(const std::string& text) {
  const auto wrong = [&text] { return ::testing::AssertionFailure() << text; };
  const auto json = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.size() != 3) return wrong();
  auto member = json.begin();
  if (member.key() != "name" || (*member != "Ada" && *member != "Grace")) return wrong();
  ++member;
  if (member.key() != "age" || (*member != 36 && *member != 85)) return wrong();
  ++member;
  if (member.key() != "tags" || !member->is_array() || member->size() > 2) return wrong();
  for (const auto& tag : *member) {
    if (tag != "a" && tag != "b") return wrong();
  }
  return ::testing::AssertionSuccess();
}

// Tests of requests for kSchema.
class SchemaTest : public ConstraintTest {
 protected:
  // Adds the schema. JSON allows white space, of which a random model would write much: here none.
  v1::GenerateRequest Schema(v1::GenerateRequest request, uint64_t seed) {
    request.mutable_constraint()->set_json_schema(kSchema);
    request.mutable_sampling()->set_seed(seed);
    for (const uint32_t id : SpaceIds()) {
      (*request.mutable_sampling()->mutable_logit_bias())[id] = -1000;
    }
    return request;
  }

  // The tokens that have white space, as the vocabulary spells it.
  std::vector<uint32_t> SpaceIds() {
    const std::vector<std::string> tokens =
        GgufEditor(models().File("nano.gguf")).GetStrings("tokenizer.ggml.tokens");
    std::vector<uint32_t> ids;
    for (size_t i = 0; i < tokens.size(); ++i) {
      for (const char* space : {"\u0120", "\u010A", "\u010D", "\u0109"}) {
        if (tokens[i].find(space) == std::string::npos) continue;
        ids.push_back(static_cast<uint32_t>(i));
        break;
      }
    }
    return ids;
  }
};

// Requests in whose output a text comes wherever a rule allows it.
class LikelyTextTest : public SchemaTest {
 protected:
  // `likely` is one token.
  v1::GenerateRequest Likely(const std::string& likely, uint64_t seed) {
    v1::TokenizeRequest tokenize;
    tokenize.mutable_text()->set_text(likely);
    v1::GenerateRequest request = Schema(TextRequest("Say it.", 60), seed);
    request.clear_constraint();
    (*request.mutable_sampling()->mutable_logit_bias())[client().Tokens(tokenize).at(0)] = 1000;
    return request;
  }
};

// The only output that a request asks for, of many tokens.
constexpr char kSentence[] = "The quick brown fox jumps over the lazy dog, twice.";

TEST_F(ConstraintTest, EachRuleHolds) {
  ASSERT_NO_FATAL_FAILURE(StartConstrained());
  if (IsSkipped()) return;
  const auto generate = [&](int seed, const std::function<void(v1::Constraint&)>& set) {
    v1::GenerateRequest request = TextRequest("Say it.", 400);
    request.mutable_sampling()->set_seed(static_cast<uint64_t>(seed));
    set(*request.mutable_constraint());
    const Generation generation = client().Generate(request);
    EXPECT_TRUE(IsComplete(generation)) << generation.error;
    EXPECT_EQ(generation.reason(), v1::FINISH_REASON_EOG) << generation.text;
    return generation.text;
  };
  for (int seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE(seed);
    EXPECT_THAT(generate(seed, [](v1::Constraint& c) { c.set_regex("[0-9]{4}-[a-f]{2,3}"); }),
                MatchesRegex("[0-9]{4}-[a-f]{2,3}"));
    EXPECT_THAT(generate(seed,
                         [](v1::Constraint& c) {
                           c.mutable_choice()->add_choices("yes");
                           c.mutable_choice()->add_choices("not at all");
                         }),
                AnyOf("yes", "not at all"));
    EXPECT_THAT(generate(seed,
                         [](v1::Constraint& c) {
                           c.mutable_grammar()->set_dialect(v1::GRAMMAR_DIALECT_EBNF);
                           c.mutable_grammar()->set_text("root ::= (\"ab\" | \"c\") \"!\"");
                         }),
                AnyOf("ab!", "c!"));
    EXPECT_THAT(generate(seed,
                         [](v1::Constraint& c) {
                           c.mutable_grammar()->set_dialect(v1::GRAMMAR_DIALECT_LARK);
                           c.mutable_grammar()->set_text("start: \"ab\" | \"c\"");
                         }),
                AnyOf("ab", "c"));
  }
}

TEST_F(SchemaTest, TheOutputIsADocumentWithItsPropertiesInOrder) {
  ASSERT_NO_FATAL_FAILURE(StartConstrained());
  if (IsSkipped()) return;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const Generation generation = client().Generate(Schema(TextRequest("Say it.", 400), seed));
    ASSERT_TRUE(IsComplete(generation)) << generation.error;
    EXPECT_EQ(generation.reason(), v1::FINISH_REASON_EOG);
    EXPECT_TRUE(FulfilsSchema(generation.text));
  }
}

TEST_F(LikelyTextTest, ATriggerBeginsATagAndItsEndFreeText) {
  ASSERT_NO_FATAL_FAILURE(StartConstrained());
  if (IsSkipped()) return;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    v1::GenerateRequest request = Likely("Z", seed);
    v1::StructuralTags& tags = *request.mutable_constraint()->mutable_structural_tags();
    tags.add_triggers("Z");
    v1::StructuralTag& tag = *tags.add_tags();
    tag.set_begin("Z");
    tag.set_json_schema(R"({"enum": ["a", "b"]})");
    tag.set_end("Q");
    const Generation generation = client().Generate(request);
    ASSERT_TRUE(IsComplete(generation)) << generation.error;
    EXPECT_EQ(generation.reason(), v1::FINISH_REASON_MAX_TOKENS);
    EXPECT_THAT(generation.text, MatchesRegex("(Z\"[ab]\"Q)+(Z(\"([ab]\"?)?)?)?"));
  }
}

TEST_F(LikelyTextTest, ARuleStartsAfterAText) {
  ASSERT_NO_FATAL_FAILURE(StartConstrained());
  if (IsSkipped()) return;
  v1::GenerateRequest request = Likely("Z", 1);
  request.mutable_constraint()->set_regex("[0-9]{4}");
  request.mutable_constraint()->set_after_string("Z");
  const Generation generation = client().Generate(request);
  ASSERT_TRUE(IsComplete(generation)) << generation.error;
  EXPECT_EQ(generation.reason(), v1::FINISH_REASON_EOG);
  EXPECT_THAT(generation.text, MatchesRegex("Z[0-9]{4}"));
}

TEST_F(LikelyTextTest, AnyObjectIsOne) {
  ASSERT_NO_FATAL_FAILURE(StartConstrained());
  if (IsSkipped()) return;
  v1::GenerateRequest request = Likely("}", 1);
  request.mutable_constraint()->set_json_object(true);
  const Generation generation = client().Generate(request);
  ASSERT_TRUE(IsComplete(generation)) << generation.error;
  EXPECT_EQ(generation.reason(), v1::FINISH_REASON_EOG);
  EXPECT_TRUE(
      nlohmann::json::parse(generation.text, nullptr, /*allow_exceptions=*/false).is_object())
      << generation.text;
}

TEST_F(ConstraintTest, TokensWithoutAChoiceAreForcedAndCounted) {
  ASSERT_NO_FATAL_FAILURE(StartConstrained({"--metrics-listen", "127.0.0.1:0"}));
  if (IsSkipped()) return;
  v1::GenerateRequest request = Choice({kSentence});
  request.set_logprobs(0);
  const Generation generation = client().Generate(request);
  ASSERT_TRUE(IsComplete(generation)) << generation.error;
  EXPECT_EQ(generation.text, kSentence);
  EXPECT_EQ(generation.reason(), v1::FINISH_REASON_EOG);
  const uint32_t forced = generation.finished->usage().forced_tokens();
  EXPECT_GT(forced, 0u);
  EXPECT_LE(forced, generation.finished->usage().generated_tokens());
  // The only continuation is certain.
  for (const v1::TokenLogprobs& token : generation.logprobs) EXPECT_EQ(token.logprob(), 0);
  // The second request finds the rule compiled.
  ASSERT_TRUE(IsComplete(client().Generate(request)));
  ASSERT_TRUE(client().WaitForStatus([&](const v1::WorkerStatus& status) {
    return status.constraints().live() == 0 && status.constraints().forced_tokens() == 2 * forced;
  })) << client().Status().constraints().DebugString();
  const v1::ConstraintFigures figures = client().Status().constraints();
  EXPECT_EQ(figures.compiled(), 1u);
  EXPECT_EQ(figures.cache_hits(), 1u);
  const std::string metrics = HttpGet(worker().SideAddress("metrics"), "/metrics");
  EXPECT_THAT(metrics, HasSubstr(absl::StrCat("\norcd_forced_tokens_total ", 2 * forced, "\n")));
  EXPECT_THAT(metrics, HasSubstr("\norcd_constraint_cache_hits_total 1\n"));
  EXPECT_THAT(metrics, HasSubstr("\norcd_constraint_compile_seconds_count 1\n"));
}

TEST_F(ConstraintTest, WhatMaxTokensCutsIsNotCalledComplete) {
  ASSERT_NO_FATAL_FAILURE(StartConstrained());
  if (IsSkipped()) return;
  v1::GenerateRequest request = Choice({kSentence});
  request.mutable_stop()->set_max_tokens(3);
  const Generation generation = client().Generate(request);
  ASSERT_TRUE(IsComplete(generation)) << generation.error;
  EXPECT_EQ(generation.ids.size(), 3u);
  EXPECT_EQ(generation.reason(), v1::FINISH_REASON_MAX_TOKENS);
}

TEST_F(SchemaTest, AResumedRequestReplaysItsRule) {
  ASSERT_NO_FATAL_FAILURE(StartConstrained());
  if (IsSkipped()) return;
  const v1::GenerateRequest request = Schema(TextRequest("Say it.", 400), 5);
  const Generation whole = client().Generate(request);
  ASSERT_TRUE(IsComplete(whole)) << whole.error;
  ASSERT_GT(whole.ids.size(), 6u);
  for (const size_t had : {size_t{1}, whole.ids.size() / 2, whole.ids.size() - 1}) {
    v1::GenerateRequest resumed = request;
    resumed.mutable_resume_token_ids()->Add(whole.ids.begin(),
                                            whole.ids.begin() + static_cast<ptrdiff_t>(had));
    const Generation rest = client().Generate(resumed);
    ASSERT_TRUE(IsComplete(rest)) << rest.error;
    std::vector<uint32_t> ids(whole.ids.begin(), whole.ids.begin() + static_cast<ptrdiff_t>(had));
    ids.insert(ids.end(), rest.ids.begin(), rest.ids.end());
    EXPECT_EQ(ids, whole.ids) << had;
  }
  // No document that the schema accepts begins with this token.
  v1::TokenizeRequest other;
  other.mutable_text()->set_text("Z");
  v1::GenerateRequest broken = request;
  broken.add_resume_token_ids(client().Tokens(other).at(0));
  const RpcError error = client().Generate(broken).error;
  EXPECT_TRUE(IsError(error, StatusCode::INVALID_ARGUMENT));
  EXPECT_EQ(error.reason, "INVALID_FIELD");
  EXPECT_THAT(error.fields, ElementsAre("resume_token_ids[0]"));
}

TEST_F(SchemaTest, OtherProtocolsGiveTheSameTokens) {
  ASSERT_NO_FATAL_FAILURE(StartConstrained());
  if (IsSkipped()) return;
  const std::vector<uint32_t> prompt = {40, 41, 42};
  v1::GenerateRequest ours = Schema(TokenRequest(prompt, 400), 3);
  ours.mutable_sampling()->set_temperature_first(true);
  ours.set_logprobs(2);
  vllm_wire::GenerateRequest theirs = ToVllm(ours, /*stream=*/true);
  theirs.mutable_sampling_params()->set_json_schema(kSchema);
  const Generation generation = client().Generate(ours);
  ASSERT_TRUE(IsComplete(generation)) << generation.error;
  VllmClient vllm(client().channel());
  VllmGeneration by_vllm = vllm.Generate(theirs);
  ASSERT_TRUE(IsComplete(by_vllm)) << by_vllm.error;
  EXPECT_EQ(by_vllm.first().reason(), "stop");
  for (size_t i = 0; i < generation.ids.size(); ++i) {
    ASSERT_LT(i, by_vllm.first().ids.size());
    EXPECT_EQ(by_vllm.first().ids[i], generation.ids[i]);
    EXPECT_EQ(by_vllm.first().logprobs[i], generation.logprobs[i].logprob());
  }

  v1::GenerateRequest text = Schema(TextRequest("Once", 400), 3);
  text.mutable_text()->set_parse_special(true);
  text.mutable_sampling()->set_temperature_first(true);
  nlohmann::json biases;
  for (const auto& [id, bias] : text.sampling().logit_bias()) biases[std::to_string(id)] = bias;
  const Generation of_text = client().Generate(text);
  ASSERT_TRUE(IsComplete(of_text)) << of_text.error;
  EXPECT_TRUE(FulfilsSchema(of_text.text));
  const auto kserve = inference::GRPCInferenceService::NewStub(client().channel());
  for (const char* name : {"json_schema", "guided_json"}) {
    inference::ModelInferRequest request =
        InferRequest("Once", absl::StrCat(R"({"max_tokens": 400, "seed": 3, "logit_bias": )",
                                          biases.dump(), ", \"", name, "\": ", kSchema, "}"));
    AddBool(request, "exclude_input_in_output", true);
    const Inference inference = Infer(*kserve, request);
    ASSERT_TRUE(inference.error.ok()) << inference.error;
    EXPECT_EQ(inference.text, of_text.text);
  }
}

TEST_F(SchemaTest, SamplesKeepTheRuleEachByItself) {
  ASSERT_NO_FATAL_FAILURE(StartConstrained());
  if (IsSkipped()) return;
  v1::GenerateRequest request = Schema(TextRequest("Say it.", 400), 7);
  request.set_samples(4);
  const Generation together = client().Generate(request);
  ASSERT_TRUE(together.error.ok()) << together.error;
  std::vector<std::string> texts(4);
  for (const v1::GenerateDelta& delta : together.deltas) texts.at(delta.sample()) += delta.text();
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(FulfilsSchema(texts[i]));
    v1::GenerateRequest alone = request;
    alone.clear_samples();
    alone.mutable_sampling()->set_seed(7 + i);
    EXPECT_EQ(client().Generate(alone).text, texts[i]);
  }
}

TEST_F(ConstraintTest, ARulesMemoryIsTheConfigurations) {
  ASSERT_NO_FATAL_FAILURE(StartConstrained({"--constraint-rule-memory", "1MiB"}));
  if (IsSkipped()) return;
  EXPECT_TRUE(IsComplete(client().Generate(Choice({"yes"}))));
  // Each byte is a state of the lexer.
  v1::GenerateRequest request = TextRequest("Say it.", 5);
  request.mutable_constraint()->set_json_schema(
      absl::StrCat(R"({"const": ")", std::string(60'000, 'x'), "\"}"));
  const Generation refused = client().Generate(request);
  EXPECT_TRUE(IsError(refused.error, StatusCode::INVALID_ARGUMENT, "CONSTRAINT_TOO_LARGE",
                      "constraint.json_schema"));
  EXPECT_THAT(refused.error.message, HasSubstr("more than 1 MiB of memory"));
}

TEST_F(ConstraintTest, TheLimitsAreTheConfigurations) {
  ASSERT_NO_FATAL_FAILURE(
      StartConstrained({"--constraint-max-bytes", "40", "--constraint-max-live", "2"}));
  if (IsSkipped()) return;
  EXPECT_TRUE(IsComplete(client().Generate(Choice({"yes"}))));
  EXPECT_TRUE(IsError(client().Generate(Choice({std::string(41, 'x')})).error,
                      StatusCode::INVALID_ARGUMENT, "CONSTRAINT_TOO_LARGE", "constraint.choice"));
  v1::GenerateRequest three = Choice({"yes"});
  three.set_samples(3);
  const Generation refused = client().Generate(three);
  EXPECT_TRUE(IsError(refused.error, StatusCode::RESOURCE_EXHAUSTED, "CONSTRAINT_LIMIT"));
  EXPECT_TRUE(refused.error.has_quota_failure);
  v1::GenerateRequest impossible = TextRequest("Say it.", 5);
  impossible.mutable_constraint()->set_json_schema("false");
  EXPECT_TRUE(IsError(client().Generate(impossible).error, StatusCode::INVALID_ARGUMENT,
                      "CONSTRAINT_UNSATISFIABLE", "constraint.json_schema"));
  const v1::ConstraintFigures figures = client().Status().constraints();
  EXPECT_EQ(figures.refused_unsatisfiable(), 1u);
  EXPECT_EQ(figures.refused_invalid(), 0u);
  EXPECT_EQ(figures.refused_too_large(), 1u);
  EXPECT_EQ(figures.refused_busy(), 1u);
}

// Tests of a model whose vocabulary has the tokens of thinking.
class ThinkingConstraintTest : public ConstraintTest {
 protected:
  void StartThinking() {
    GgufEditor editor(models().File("nano.gguf"));
    std::vector<std::string> tokens = editor.GetStrings("tokenizer.ggml.tokens");
    // The elements follow their type and their number.
    std::string& types = editor.Find("tokenizer.ggml.token_type").value;
    const int32_t user_defined = 4;
    const auto name = [&](uint32_t id, const char* text) {
      tokens.at(id) = text;
      std::memcpy(&types.at(12 + 4 * id), &user_defined, sizeof(user_defined));
    };
    begin_ = static_cast<uint32_t>(tokens.size()) - 2;
    end_ = begin_ + 1;
    name(begin_, "<think>");
    name(end_, "</think>");
    editor.SetStrings("tokenizer.ggml.tokens", tokens);
    editor.Write(models().File("thinker.gguf"));
    ASSERT_NO_FATAL_FAILURE(StartConstrained({}, "thinker.gguf"));
  }

  // A request that ends its thinking at once where it may.
  vllm_wire::GenerateRequest Request(std::vector<uint32_t> prompt) const {
    vllm_wire::GenerateRequest request = ToVllm(TokenRequest(prompt, 50), /*stream=*/false);
    vllm_wire::SamplingParams& params = *request.mutable_sampling_params();
    (*params.mutable_logit_bias())[static_cast<int32_t>(end_)] = 1000;
    params.mutable_choice()->add_choices("yes");
    return request;
  }

  // Every token but the one that ended the generation.
  std::vector<uint32_t> Ids(const vllm_wire::GenerateRequest& request) {
    VllmGeneration generation = VllmClient(client().channel()).Generate(request);
    EXPECT_TRUE(IsComplete(generation)) << generation.error;
    std::vector<uint32_t> ids = generation.first().ids;
    if (!ids.empty()) ids.pop_back();
    return ids;
  }

  uint32_t begin_ = 0;
  uint32_t end_ = 0;
};

TEST_F(ThinkingConstraintTest, TheRuleStartsAfterThinkingIfThePromptEndsInIt) {
  ASSERT_NO_FATAL_FAILURE(StartThinking());
  if (IsSkipped()) return;
  EXPECT_EQ(client().Status().model().thinking_end_token_id(), end_);
  v1::TokenizeRequest tokenize;
  tokenize.mutable_text()->set_text("yes");
  const std::vector<uint32_t> yes = client().Tokens(tokenize);
  std::vector<uint32_t> after_thinking = {end_};
  after_thinking.insert(after_thinking.end(), yes.begin(), yes.end());

  vllm_wire::GenerateRequest thinks = Request({40, begin_, 41});
  EXPECT_EQ(Ids(thinks), after_thinking);
  thinks.mutable_sampling_params()->set_grammar_from_first_token(true);
  EXPECT_EQ(Ids(thinks), yes);
  EXPECT_EQ(Ids(Request({40, begin_, 41, end_})), yes);
  EXPECT_EQ(Ids(Request({40, 41})), yes);

  grpc::ClientContext context;
  vllm_wire::GetServerInfoResponse info;
  const auto stub = vllm_wire::VllmEngine::NewStub(client().channel());
  ASSERT_TRUE(stub->GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.constrained_decoding_start(), "after_reasoning");
}

TEST_F(ThinkingConstraintTest, OrcdV1NamesWhereTheRuleStarts) {
  ASSERT_NO_FATAL_FAILURE(StartThinking());
  if (IsSkipped()) return;
  v1::GenerateRequest request = Choice({"yes"});
  (*request.mutable_sampling()->mutable_logit_bias())[end_] = 1000;
  EXPECT_EQ(client().Generate(request).text, "yes");
  request.mutable_constraint()->set_after_token(end_);
  const Generation generation = client().Generate(request);
  ASSERT_TRUE(IsComplete(generation)) << generation.error;
  ASSERT_FALSE(generation.ids.empty());
  EXPECT_EQ(generation.ids[0], end_);
  EXPECT_THAT(generation.text, AnyOf("yes", "</think>yes"));
}

}  // namespace
}  // namespace orcd::testing
