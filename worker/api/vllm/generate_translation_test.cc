#include "worker/api/vllm/generate_translation.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

vllm_wire::GenerateRequest Request() {
  vllm_wire::GenerateRequest request;
  request.mutable_tokenized()->add_input_ids(5);
  return request;
}

v1::GenerateRequest Translate(const vllm_wire::GenerateRequest& request) {
  const absl::StatusOr<v1::GenerateRequest> proto = TranslateVllmRequest(request);
  EXPECT_TRUE(proto.ok()) << proto.status();
  return proto.value_or(v1::GenerateRequest());
}

TEST(GenerateTranslationTest, WhatIsAbsentIsLeftToTheDefaults) {
  const v1::GenerateRequest proto = Translate(Request());
  EXPECT_THAT(proto.tokens().ids(), ElementsAre(5));
  EXPECT_EQ(proto.request_id(), "");
  EXPECT_FALSE(proto.sampling().has_temperature());
  EXPECT_FALSE(proto.sampling().has_top_p());
  EXPECT_FALSE(proto.sampling().has_repetition_penalty());
  EXPECT_FALSE(proto.sampling().has_seed());
  EXPECT_FALSE(proto.stop().has_max_tokens());
  EXPECT_FALSE(proto.has_samples());
  EXPECT_FALSE(proto.has_logprobs());
  EXPECT_FALSE(proto.has_prompt_logprobs());
}

TEST(GenerateTranslationTest, EveryFieldArrives) {
  vllm_wire::GenerateRequest request = Request();
  request.set_request_id("chatcmpl-1");
  vllm_wire::SamplingParams& params = *request.mutable_sampling_params();
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
  const v1::GenerateRequest proto = Translate(request);
  EXPECT_EQ(proto.request_id(), "chatcmpl-1");
  EXPECT_TRUE(proto.sampling().has_temperature());
  EXPECT_EQ(proto.sampling().temperature(), 0);
  EXPECT_EQ(proto.sampling().top_p(), 0.5f);
  EXPECT_EQ(proto.sampling().top_k(), 40u);
  EXPECT_EQ(proto.sampling().min_p(), 0.25f);
  EXPECT_EQ(proto.sampling().frequency_penalty(), -1.5f);
  EXPECT_EQ(proto.sampling().presence_penalty(), 1.25f);
  EXPECT_EQ(proto.sampling().repetition_penalty(), 1.5f);
  EXPECT_EQ(proto.sampling().seed(), 42u);
  EXPECT_EQ(proto.sampling().logit_bias().at(3), -100);
  EXPECT_EQ(proto.stop().max_tokens(), 7u);
  EXPECT_EQ(proto.stop().min_tokens(), 3u);
  EXPECT_THAT(proto.stop().strings(), ElementsAre("END"));
  EXPECT_THAT(proto.stop().token_ids(), ElementsAre(9));
  EXPECT_TRUE(proto.stop().ignore_eog());
  EXPECT_EQ(proto.samples(), 4u);
  EXPECT_TRUE(proto.has_logprobs());
  EXPECT_EQ(proto.logprobs(), 0u);
  EXPECT_EQ(proto.prompt_logprobs(), 20u);
}

TEST(GenerateTranslationTest, NegativeSeedsAreRandom) {
  vllm_wire::GenerateRequest request = Request();
  for (const int32_t seed : {-1, -2, std::numeric_limits<int32_t>::min()}) {
    request.mutable_sampling_params()->set_seed(seed);
    EXPECT_FALSE(Translate(request).sampling().has_seed()) << seed;
  }
  request.mutable_sampling_params()->set_seed(0);
  EXPECT_TRUE(Translate(request).sampling().has_seed());
  request.mutable_sampling_params()->set_seed(std::numeric_limits<int32_t>::max());
  EXPECT_EQ(Translate(request).sampling().seed(), 0x7FFFFFFFu);
}

TEST(GenerateTranslationTest, WhatThePenaltiesCountAndTheOrderAreVllms) {
  vllm_wire::GenerateRequest request = Request();
  request.mutable_sampling_params()->set_frequency_penalty(2);
  EXPECT_FALSE(Translate(request).sampling().count_prompt());
  EXPECT_TRUE(Translate(request).sampling().temperature_first());
}

TEST(GenerateTranslationTest, TextMayHoldControlTokens) {
  vllm_wire::GenerateRequest request;
  request.set_text("<|im_start|>user");
  const v1::GenerateRequest proto = Translate(request);
  EXPECT_EQ(proto.text().text(), "<|im_start|>user");
  EXPECT_TRUE(proto.text().parse_special());
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
      {"sampling_params.json_schema", params([](auto& p) { p.set_json_schema("{}"); })},
      {"sampling_params.json_schema", params([](auto& p) { p.set_json_schema(""); })},
      {"sampling_params.regex", params([](auto& p) { p.set_regex("a*"); })},
      {"sampling_params.grammar", params([](auto& p) { p.set_grammar("root ::= x"); })},
      {"sampling_params.structural_tag", params([](auto& p) { p.set_structural_tag("{}"); })},
      {"sampling_params.json_object", params([](auto& p) { p.set_json_object(true); })},
      {"sampling_params.choice", params([](auto& p) { p.mutable_choice(); })},
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
  const std::pair<const char*, const char*> cases[] = {
      {"sampling.top_p", "sampling_params.top_p"},
      {"stop.strings[2]", "sampling_params.stop[2]"},
      {"stop.token_ids[0]", "sampling_params.stop_token_ids[0]"},
      {"stop.max_tokens", "sampling_params.max_tokens"},
      {"stop.min_tokens", "sampling_params.min_tokens"},
      {"samples", "sampling_params.n"},
      {"text.text", "text"},
      {"tokens.ids[3]", "tokenized.input_ids[3]"},
      {"prompt", "input"},
      {"request_id", "request_id"},
      // A name that only begins with a known name is left alone.
      {"samplesize", "samplesize"}};
  for (const auto& [ours, theirs] : cases) {
    const absl::Status status = InVllmWords(InvalidField(ours, "is wrong: samples"));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), std::string(theirs) + ": is wrong: samples");
    EXPECT_EQ(GetErrorDetails(status).field, theirs);
    EXPECT_EQ(GetErrorDetails(status).reason, "INVALID_FIELD");
  }
}

TEST(GenerateTranslationTest, OtherErrorsStayAsTheyAre) {
  const absl::Status full = MakeError(
      absl::StatusCode::kResourceExhausted, "the queue is full",
      {.reason = "QUEUE_FULL", .subject = "queue:requests", .retry_after = absl::Seconds(2)});
  EXPECT_EQ(InVllmWords(full), full);
  const absl::Status renamed =
      InVllmWords(MakeError(absl::StatusCode::kInvalidArgument, "the prompt has 9 tokens",
                            {.reason = "PROMPT_TOO_LONG", .field = "prompt"}));
  EXPECT_EQ(renamed.message(), "the prompt has 9 tokens");
  EXPECT_EQ(GetErrorDetails(renamed).reason, "PROMPT_TOO_LONG");
  EXPECT_EQ(GetErrorDetails(renamed).field, "input");
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

}  // namespace
}  // namespace orcd
