#include "worker/api/kserve/infer_translation.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "worker/api/kserve/infer_request_for_test.h"
#include "worker/api/orcd/build_for_test.h"

namespace orcd::kserve {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const InferForm& FormOf(const MultiplexedGenerate& asked) {
  return static_cast<const InferForm&>(*asked.notes);
}

std::string RefusedField(const inference::ModelInferRequest& request,
                         InferCallKind kind = InferCallKind::kStream) {
  return GetErrorDetails(TranslateInfer(request, kind).refusal).field;
}

TEST(InferTranslationTest, OneAnswerHasTheTextBeforeTheOutput) {
  inference::ModelInferRequest request = InferRequest("Hello", R"({"max_tokens": 3})");
  request.set_id("a");
  const MultiplexedGenerate asked = TranslateInfer(request, InferCallKind::kUnary);
  ASSERT_TRUE(asked.refusal.ok()) << asked.refusal;
  EXPECT_TRUE(asked.at_once);
  EXPECT_EQ(asked.preface, "Hello");
  EXPECT_EQ(asked.request.model_id(), "nano");
  EXPECT_EQ(asked.request.request().stop.max_tokens, 3);
  EXPECT_EQ(asked.timeout, absl::InfiniteDuration());
  EXPECT_TRUE(FormOf(asked).text);
  EXPECT_FALSE(FormOf(asked).finish_reason);
  EXPECT_FALSE(FormOf(asked).token_ids);
  EXPECT_EQ(FormOf(asked).id, "a");
}

TEST(InferTranslationTest, RequestsOfOneIdAreToldApart) {
  inference::ModelInferRequest request = InferRequest("a");
  for (const std::string& id :
       {std::string(), std::string("mine"), std::string("a b"), std::string(256, 'x')}) {
    request.set_id(id);
    const MultiplexedGenerate one = TranslateInfer(request, InferCallKind::kStream);
    const MultiplexedGenerate two = TranslateInfer(request, InferCallKind::kStream);
    EXPECT_TRUE(CheckRequestId(one.request.request().id).ok());
    EXPECT_NE(one.request.request().id, two.request.request().id);
    EXPECT_EQ(FormOf(one).id, id);
  }
  request.set_id("mine");
  EXPECT_THAT(TranslateInfer(request, InferCallKind::kStream).request.request().id,
              StartsWith("mine-"));
  request.set_id(std::string(257, 'x'));
  EXPECT_EQ(RefusedField(request), "id");
}

TEST(InferTranslationTest, OutputsAreThoseAskedFor) {
  inference::ModelInferRequest request = InferRequest("a");
  request.add_outputs()->set_name("token_ids");
  request.add_outputs()->set_name("num_output_tokens");
  const MultiplexedGenerate asked = TranslateInfer(request, InferCallKind::kUnary);
  ASSERT_TRUE(asked.refusal.ok()) << asked.refusal;
  EXPECT_FALSE(FormOf(asked).text);
  EXPECT_EQ(asked.preface, "");
  EXPECT_TRUE(FormOf(asked).token_ids);
  EXPECT_TRUE(FormOf(asked).output_tokens);
  request.add_outputs()->set_name("token_ids");
  EXPECT_EQ(RefusedField(request), "outputs[2].name");
  request.mutable_outputs(2)->set_name("logprobs");
  EXPECT_EQ(RefusedField(request), "outputs[2].name");
  request.mutable_outputs(2)->set_name("text_output");
  (*request.mutable_outputs(2)->mutable_parameters())["classification"].set_int64_param(1);
  EXPECT_EQ(RefusedField(request), "outputs[2].parameters");
}

TEST(InferTranslationTest, TritonsParameters) {
  inference::ModelInferRequest request = InferRequest("a");
  AddBool(request, "stream", true);
  auto& parameters = *request.mutable_parameters();
  parameters["triton_enable_empty_final_response"].set_bool_param(true);
  parameters["timeout"].set_int64_param(1500);
  const MultiplexedGenerate asked = TranslateInfer(request, InferCallKind::kStream);
  ASSERT_TRUE(asked.refusal.ok()) << asked.refusal;
  EXPECT_TRUE(FormOf(asked).empty_final);
  EXPECT_EQ(asked.timeout, absl::Microseconds(1500));
  EXPECT_FALSE(asked.at_once);
  EXPECT_EQ(asked.preface, "");
  EXPECT_EQ(RefusedField(request, InferCallKind::kUnary), "stream");
  parameters["timeout"].set_int64_param(-1);
  EXPECT_EQ(RefusedField(request), "parameters.timeout");
  parameters["timeout"].set_string_param("1");
  EXPECT_EQ(RefusedField(request), "parameters.timeout");
  parameters.erase("timeout");
  parameters["sequence_id"].set_int64_param(1);
  EXPECT_EQ(RefusedField(request), "parameters");
}

TEST(InferTranslationTest, WhatThePenaltiesCountAndTheOrderAreVllms) {
  const MultiplexedGenerate asked = TranslateInfer(InferRequest("a"), InferCallKind::kUnary);
  ASSERT_TRUE(asked.refusal.ok()) << asked.refusal;
  EXPECT_TRUE(asked.request.request().sampling.temperature_first);
  EXPECT_FALSE(asked.request.request().sampling.count_prompt);
}

TEST(InferTranslationTest, TheModelIsNamedAndOfOneVersion) {
  inference::ModelInferRequest request = InferRequest("a");
  request.set_model_version("1");
  EXPECT_TRUE(TranslateInfer(request, InferCallKind::kUnary).refusal.ok());
  request.set_model_version("2");
  const absl::Status status = TranslateInfer(request, InferCallKind::kUnary).refusal;
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(GetErrorDetails(status).reason, "MODEL_NOT_FOUND");
  request.clear_model_name();
  EXPECT_EQ(RefusedField(request), "model_name");
}

TEST(InferTranslationTest, TextMayHoldControlTokens) {
  const MultiplexedGenerate asked =
      TranslateInfer(InferRequest("<|im_start|>user"), InferCallKind::kUnary);
  const absl::StatusOr<GenerationRequest> built = Build(asked.request);
  ASSERT_TRUE(built.ok()) << built.status();
  EXPECT_EQ(built->prompt,
            NanoModel().tokenizer().Encode("<|im_start|>user", /*parse_special=*/true));
}

TEST(InferTranslationTest, ErrorsNameTheFieldsOfThisProtocol) {
  const struct {
    std::string field;
    std::string text;
    std::string parameters;
  } cases[] = {
      {"sampling_parameters.top_p", "a", R"({"top_p": 2})"},
      {"sampling_parameters.stop[2]", "a", R"({"stop": ["a", "b", ""]})"},
      {"sampling_parameters.max_tokens", "a", R"({"max_tokens": 0})"},
      {"sampling_parameters.min_tokens", "a", R"({"max_tokens": 1, "min_tokens": 2})"},
      {"sampling_parameters.stop_token_ids[0]", "a", R"({"stop_token_ids": [4000000000]})"},
      {"text_input", "", "{}"},
  };
  for (const auto& [field, text, parameters] : cases) {
    const MultiplexedGenerate asked =
        TranslateInfer(InferRequest(text, parameters), InferCallKind::kUnary);
    ASSERT_TRUE(asked.refusal.ok()) << asked.refusal;
    const absl::Status status = Build(asked.request).status();
    EXPECT_EQ(GetErrorDetails(status).field, field);
    EXPECT_EQ(GetErrorDetails(status).reason, "INVALID_FIELD");
    EXPECT_THAT(std::string(status.message()), StartsWith(field + ": "));
    EXPECT_EQ(InInferWords(status), status);
  }
  EXPECT_TRUE(InInferWords(absl::OkStatus()).ok());
  // The engine names it in PROMPT_TOO_LONG.
  EXPECT_STREQ(
      TranslateInfer(InferRequest("a"), InferCallKind::kUnary).request.request().fields->prompt,
      "text_input");
}

TEST(InferTranslationTest, AnUnknownModelIsToldByItsNameHere) {
  const absl::Status status = InInferWords(
      MakeError(absl::StatusCode::kNotFound, "model_id: leave model_id empty",
                {.reason = "MODEL_NOT_FOUND", .field = "model_id", .subject = "gpt-5"}));
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(GetErrorDetails(status).subject, "gpt-5");
  EXPECT_THAT(std::string(status.message()), StartsWith("model_name: there is no model 'gpt-5'"));
}

TEST(InferTranslationTest, WhoIsDrainedIsNotToldToResume) {
  const absl::Status status = InInferWords(
      MakeError(absl::StatusCode::kUnavailable, "send resume_token_ids", {.reason = "DRAINED"}));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(GetErrorDetails(status).reason, "DRAINED");
  EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr("resume")));
}

TEST(InferTranslationTest, ANameThatNoModelHasIsNotKept) {
  inference::ModelInferRequest request = InferRequest("a");
  request.set_model_name(std::string(1 << 20, 'm'));
  const MultiplexedGenerate asked = TranslateInfer(request, InferCallKind::kStream);
  EXPECT_TRUE(absl::IsNotFound(asked.refusal)) << asked.refusal;
  EXPECT_EQ(GetErrorDetails(asked.refusal).reason, "MODEL_NOT_FOUND");
  EXPECT_LE(GetErrorDetails(asked.refusal).subject.size(), 256u);
  EXPECT_LT(asked.refusal.message().size(), 256u);
  EXPECT_LE(FormOf(asked).model_name.size(), 256u);
}

}  // namespace
}  // namespace orcd::kserve
