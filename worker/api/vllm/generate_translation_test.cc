#include "worker/api/vllm/generate_translation.h"

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "worker/api/orcd/build_for_test.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Pair;
using ::testing::StartsWith;

vllm_wire::GenerateRequest Request() {
  vllm_wire::GenerateRequest request;
  request.mutable_tokenized()->add_input_ids(5);
  return request;
}

GenerationRequest Translate(const vllm_wire::GenerateRequest& request) {
  const absl::StatusOr<RequestBuilder> builder = TranslateVllmRequest(request);
  EXPECT_TRUE(builder.ok()) << builder.status();
  if (!builder.ok()) return {};
  const absl::StatusOr<GenerationRequest> built = Build(*builder);
  EXPECT_TRUE(built.ok()) << built.status();
  return built.value_or(GenerationRequest());
}

TEST(GenerateTranslationTest, WhatIsAbsentIsLeftToTheDefaults) {
  const GenerationRequest request = Translate(Request());
  EXPECT_THAT(request.prompt, ElementsAre(5));
  EXPECT_THAT(request.id, MatchesRegex("[0-9a-f]{16}"));
  EXPECT_EQ(request.sampling.temperature, 1.0f);
  EXPECT_EQ(request.sampling.top_p, 1.0f);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.0f);
  EXPECT_NE(request.sampling.seed, Translate(Request()).sampling.seed);
  EXPECT_EQ(request.stop.max_tokens, 0);
  EXPECT_EQ(request.samples, 1);
  EXPECT_EQ(request.sampling.logprobs, -1);
  EXPECT_EQ(request.prompt_logprobs, -1);
}

TEST(GenerateTranslationTest, EveryFieldArrives) {
  vllm_wire::GenerateRequest proto = Request();
  proto.set_request_id("chatcmpl-1");
  vllm_wire::SamplingParams& params = *proto.mutable_sampling_params();
  params.set_temperature(0);
  params.set_top_p(0.5f);
  params.set_top_k(40);
  params.set_min_p(0.25f);
  params.set_frequency_penalty(-1.5f);
  params.set_presence_penalty(1.25f);
  params.set_repetition_penalty(1.5f);
  params.set_max_tokens(7);
  params.set_min_tokens(3);
  params.add_stop("END");
  params.add_stop_token_ids(9);
  params.set_ignore_eos(true);
  params.set_n(4);
  params.set_logprobs(0);
  params.set_prompt_logprobs(20);
  params.set_seed(42);
  (*params.mutable_logit_bias())[3] = -100;
  const GenerationRequest request = Translate(proto);
  EXPECT_EQ(request.id, "chatcmpl-1");
  EXPECT_EQ(request.sampling.temperature, 0);
  EXPECT_EQ(request.sampling.top_p, 0.5f);
  EXPECT_EQ(request.sampling.top_k, 40);
  EXPECT_EQ(request.sampling.min_p, 0.25f);
  EXPECT_EQ(request.sampling.frequency_penalty, -1.5f);
  EXPECT_EQ(request.sampling.presence_penalty, 1.25f);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(request.sampling.seed, 42u);
  EXPECT_THAT(request.sampling.logit_bias, ElementsAre(Pair(3, -100)));
  EXPECT_EQ(request.stop.max_tokens, 7);
  EXPECT_EQ(request.stop.min_tokens, 3);
  EXPECT_THAT(request.stop.strings, ElementsAre("END"));
  EXPECT_THAT(request.stop.ids, ElementsAre(9));
  EXPECT_TRUE(request.stop.ignore_eog);
  EXPECT_EQ(request.samples, 4);
  EXPECT_EQ(request.sampling.logprobs, 0);
  EXPECT_EQ(request.prompt_logprobs, 20);
}

TEST(GenerateTranslationTest, NegativeSeedsAreRandom) {
  vllm_wire::GenerateRequest request = Request();
  for (const int32_t seed : {-1, -2, std::numeric_limits<int32_t>::min()}) {
    request.mutable_sampling_params()->set_seed(seed);
    EXPECT_NE(Translate(request).sampling.seed, Translate(request).sampling.seed) << seed;
  }
  request.mutable_sampling_params()->set_seed(0);
  EXPECT_EQ(Translate(request).sampling.seed, 0u);
  request.mutable_sampling_params()->set_seed(std::numeric_limits<int32_t>::max());
  EXPECT_EQ(Translate(request).sampling.seed, 0x7FFFFFFFu);
}

TEST(GenerateTranslationTest, WhatThePenaltiesCountAndTheOrderAreVllms) {
  vllm_wire::GenerateRequest request = Request();
  request.mutable_sampling_params()->set_frequency_penalty(2);
  EXPECT_FALSE(Translate(request).sampling.count_prompt);
  EXPECT_TRUE(Translate(request).sampling.temperature_first);
}

TEST(GenerateTranslationTest, TextMayHoldControlTokens) {
  vllm_wire::GenerateRequest request;
  request.set_text("<|im_start|>user");
  EXPECT_EQ(Translate(request).prompt,
            NanoModel().tokenizer().Encode("<|im_start|>user", /*parse_special=*/true));
}

TEST(GenerateTranslationTest, WhatIsNotServedIsRefusedByName) {
  struct Case {
    std::string field;
    std::function<void(vllm_wire::GenerateRequest&)> spoil;
  };
  const auto params = [](void (*spoil)(vllm_wire::SamplingParams&)) {
    return [spoil](vllm_wire::GenerateRequest& r) { spoil(*r.mutable_sampling_params()); };
  };
  const std::vector<Case> cases = {
      {"input", [](auto& r) { r.clear_input(); }},
      {"kv_transfer_params", [](auto& r) { r.mutable_kv_transfer_params(); }},
      {"kv_transfer_params_json", [](auto& r) { r.set_kv_transfer_params_json(""); }},
      {"mm_inputs", [](auto& r) { r.mutable_mm_inputs(); }},
      {"extra_mm_inputs", [](auto& r) { r.add_extra_mm_inputs(); }},
      {"media_refs", [](auto& r) { r.mutable_media_refs(); }},
      {"data_parallel_rank", [](auto& r) { r.set_data_parallel_rank(1); }},
      {"data_parallel_rank", [](auto& r) { r.set_data_parallel_rank(-1); }},
      {"sampling_params.structural_tag", params([](auto& p) { p.set_structural_tag("{}"); })},
      {"sampling_params.truncate_prompt_tokens",
       params([](auto& p) { p.set_truncate_prompt_tokens(-1); })},
      {"sampling_params.logprobs", params([](auto& p) { p.set_logprobs(21); })},
      {"sampling_params.logit_bias[-1]",
       params([](auto& p) { (*p.mutable_logit_bias())[-1] = 1; })},
      {"sampling_params.logprobs", params([](auto& p) { p.set_logprobs(-1); })},
      {"sampling_params.prompt_logprobs", params([](auto& p) { p.set_prompt_logprobs(21); })},
      {"sampling_params.prompt_logprobs", params([](auto& p) { p.set_prompt_logprobs(-1); })},
  };
  for (const auto& [field, spoil] : cases) {
    vllm_wire::GenerateRequest request = Request();
    spoil(request);
    const absl::Status status = TranslateVllmRequest(request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_EQ(GetErrorDetails(status).field, field);
    EXPECT_THAT(std::string(status.message()), StartsWith(field + ": "));
  }
}

TEST(GenerateTranslationTest, NoConstraintAndTheOneRankAreFine) {
  vllm_wire::GenerateRequest request = Request();
  request.mutable_sampling_params()->set_json_object(false);
  request.set_data_parallel_rank(0);
  Translate(request);
}

TEST(GenerateTranslationTest, ErrorsNameTheFieldsOfThisProtocol) {
  struct Case {
    std::string field;
    std::function<void(vllm_wire::GenerateRequest&)> spoil;
  };
  const auto params = [](void (*spoil)(vllm_wire::SamplingParams&)) {
    return [spoil](vllm_wire::GenerateRequest& r) { spoil(*r.mutable_sampling_params()); };
  };
  const std::vector<Case> cases = {
      {"sampling_params.top_p", params([](auto& p) { p.set_top_p(2); })},
      {"sampling_params.logit_bias[7]",
       params([](auto& p) { (*p.mutable_logit_bias())[7] = 2000; })},
      {"sampling_params.stop[1]", params([](auto& p) {
         p.add_stop("a");
         p.add_stop("");
       })},
      {"sampling_params.stop_token_ids[0]",
       params([](auto& p) { p.add_stop_token_ids(3'000'000'000); })},
      {"sampling_params.max_tokens", params([](auto& p) { p.set_max_tokens(0); })},
      {"sampling_params.min_tokens", params([](auto& p) {
         p.set_max_tokens(1);
         p.set_min_tokens(2);
       })},
      {"text", [](auto& r) { r.set_text(""); }},
      {"tokenized.input_ids", [](auto& r) { r.mutable_tokenized()->clear_input_ids(); }},
      {"request_id", [](auto& r) { r.set_request_id("a b"); }},
  };
  for (const auto& [field, spoil] : cases) {
    vllm_wire::GenerateRequest request = Request();
    spoil(request);
    const absl::StatusOr<RequestBuilder> builder = TranslateVllmRequest(request);
    ASSERT_TRUE(builder.ok()) << builder.status();
    const absl::Status status = Build(*builder).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), StartsWith(field + ": "));
    EXPECT_EQ(GetErrorDetails(status).field, field);
    EXPECT_EQ(GetErrorDetails(status).reason, "INVALID_FIELD");
  }
  // The engine's own checks name these.
  const RequestFields& fields = *Translate(Request()).fields;
  EXPECT_STREQ(fields.samples, "sampling_params.n");
  EXPECT_STREQ(fields.tokens, "tokenized.input_ids");
  EXPECT_STREQ(fields.prompt, "input");
}

TEST(GenerateTranslationTest, OtherErrorsStayAsTheyAre) {
  const absl::Status full = MakeError(
      absl::StatusCode::kResourceExhausted, "the queue is full",
      {.reason = "QUEUE_FULL", .subject = "queue:requests", .retry_after = absl::Seconds(2)});
  EXPECT_EQ(InVllmWords(full), full);
}

// Gateways report UNIMPLEMENTED as a failure of their own, but this is an error for the client to
// correct.
TEST(GenerateTranslationTest, PromptLogprobsThatNobodyComputesAreAWrongField) {
  const absl::Status status =
      InVllmWords(MakeError(absl::StatusCode::kUnimplemented, "leave prompt_logprobs out",
                            {.reason = "PROMPT_LOGPROBS_UNSUPPORTED", .subject = "null"}));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetails(status).field, "sampling_params.prompt_logprobs");
  EXPECT_THAT(std::string(status.message()), HasSubstr("leave prompt_logprobs out"));
}

TEST(GenerateTranslationTest, AWorkerWithoutConstraintsIsTheClientsErrorToo) {
  const absl::Status status =
      InVllmWords(MakeError(absl::StatusCode::kUnimplemented, "leave sampling_params.regex out",
                            {.reason = "CONSTRAINTS_NOT_BUILT", .field = "sampling_params.regex"}));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetails(status).reason, "CONSTRAINTS_NOT_BUILT");
  EXPECT_EQ(GetErrorDetails(status).field, "sampling_params.regex");
  EXPECT_EQ(status.message(), "leave sampling_params.regex out");
}

// Unset if the request has no constraint.
std::optional<ConstraintSpec> ConstraintOf(const vllm_wire::SamplingParams& params) {
  vllm_wire::GenerateRequest request = Request();
  *request.mutable_sampling_params() = params;
  const absl::StatusOr<RequestBuilder> builder = TranslateVllmRequest(request);
  EXPECT_TRUE(builder.ok()) << builder.status();
  if (!builder.ok() || builder->constraint() == nullptr) return std::nullopt;
  return *builder->constraint();
}

TEST(GenerateTranslationTest, EachConstraintBecomesItsRule) {
  vllm_wire::SamplingParams params;
  EXPECT_FALSE(ConstraintOf(params));
  params.set_json_object(false);
  EXPECT_FALSE(ConstraintOf(params));
  params.set_json_object(true);
  EXPECT_TRUE(std::holds_alternative<JsonObjectRule>(ConstraintOf(params)->rule));
  params.set_json_schema(R"({"b": 1, "a": 2})");
  EXPECT_EQ(std::get<JsonSchemaRule>(ConstraintOf(params)->rule).schema, R"({"b": 1, "a": 2})");
  EXPECT_EQ(ConstraintOf(params)->field, "sampling_params.json_schema");
  params.set_regex("a+");
  EXPECT_EQ(std::get<RegexRule>(ConstraintOf(params)->rule).expression, "a+");
  params.set_grammar("root ::= \"a\"");
  EXPECT_EQ(std::get<GrammarRule>(ConstraintOf(params)->rule).dialect, GrammarDialect::kEbnf);
  params.set_grammar("start: \"a\"");
  EXPECT_EQ(std::get<GrammarRule>(ConstraintOf(params)->rule).dialect, GrammarDialect::kLark);
  params.mutable_choice()->add_choices("yes");
  params.mutable_choice()->add_choices("no");
  EXPECT_THAT(std::get<ChoiceRule>(ConstraintOf(params)->rule).choices, ElementsAre("yes", "no"));
  EXPECT_EQ(ConstraintOf(params)->field, "sampling_params.choice");
  params.set_structural_tag(
      R"({"structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}], "triggers": ["<f"]})");
  const auto tags = std::get<StructuralTagRule>(ConstraintOf(params)->rule);
  ASSERT_EQ(tags.tags.size(), 1u);
  EXPECT_EQ(tags.tags[0].begin, "<f>");
  EXPECT_THAT(tags.triggers, ElementsAre("<f"));
  EXPECT_EQ(ConstraintOf(params)->field, "sampling_params.structural_tag");
}

}  // namespace
}  // namespace orcd
