#include "worker/api/vllm/vllm_encoder.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "worker/base/messages.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

vllm_wire::GenerateResponse Decode(const grpc::ByteBuffer& bytes) {
  const auto message = ParseRequest<vllm_wire::GenerateResponse>(bytes);
  EXPECT_TRUE(message.ok());
  return *message;
}

std::vector<vllm_wire::GenerateResponse> Decode(const ResponseEncoder::End& end) {
  std::vector<vllm_wire::GenerateResponse> messages;
  for (const grpc::ByteBuffer& bytes : end.messages) messages.push_back(Decode(bytes));
  return messages;
}

SampledToken Sampled(int32_t token, float logprob, std::vector<TokenLogprob> top = {}) {
  return {.token = token, .logprob = logprob, .top = std::move(top), .finite = true};
}

FinishedEvent Finished(FinishReason reason, int generated) {
  FinishedEvent event;
  event.reason = reason;
  event.prompt_tokens = 5;
  event.cached_prompt_tokens = 4;
  event.generated_tokens = generated;
  return event;
}

absl::Status Cancelled() {
  return MakeError(absl::StatusCode::kCancelled, "cancelled", {.reason = "CANCELLED"});
}

TEST(VllmEncoderTest, StreamedChunksHaveTheNewTokensAndTheEndHasTheFigures) {
  VllmEncoder encoder({.stream = true});
  EXPECT_FALSE(encoder.OnStarted({.prompt_tokens = 5, .cached_prompt_tokens = 4}));
  const auto chunk = encoder.OnDelta({.text = "ab", .tokens = {7, 8}});
  ASSERT_TRUE(chunk);
  const vllm_wire::GenerateResponse message = Decode(*chunk);
  EXPECT_THAT(message.chunk().token_ids(), ElementsAre(7, 8));
  EXPECT_EQ(message.chunk().prompt_tokens(), 5u);
  EXPECT_EQ(message.chunk().cached_tokens(), 4u);
  EXPECT_EQ(message.chunk().completion_tokens(), 2u);
  EXPECT_FALSE(message.chunk().has_output_logprobs());
  const auto second = encoder.OnDelta({.tokens = {9}});
  ASSERT_TRUE(second);
  EXPECT_THAT(Decode(*second).chunk().token_ids(), ElementsAre(9));
  // This delta has only text that was held back.
  EXPECT_FALSE(encoder.OnDelta({.text = "c"}));

  const auto end = encoder.OnFinished(Finished(FinishReason::kMaxTokens, 3), absl::OkStatus());
  EXPECT_TRUE(end.status.ok());
  const auto messages = Decode(end);
  ASSERT_EQ(messages.size(), 1u);
  const vllm_wire::GenerateComplete& complete = messages[0].complete();
  EXPECT_EQ(complete.finish_reason(), "length");
  EXPECT_THAT(complete.output_ids(), IsEmpty());
  EXPECT_EQ(complete.prompt_tokens(), 5u);
  EXPECT_EQ(complete.completion_tokens(), 3u);
  EXPECT_EQ(complete.cached_tokens(), 4u);
  EXPECT_EQ(complete.matched_stop_case(), vllm_wire::GenerateComplete::MATCHED_STOP_NOT_SET);
  EXPECT_EQ(encoder.held_bytes(), 0u);
}

TEST(VllmEncoderTest, WithoutStreamingAllComesAtTheEnd) {
  VllmEncoder encoder({});
  encoder.OnStarted({.prompt_tokens = 5, .cached_prompt_tokens = 4});
  EXPECT_FALSE(encoder.OnDelta({.tokens = {7, 8}}));
  EXPECT_FALSE(encoder.OnDelta({.tokens = {9}}));
  EXPECT_GE(encoder.held_bytes(), 3 * sizeof(uint32_t));
  FinishedEvent event = Finished(FinishReason::kStopString, 3);
  event.stop_string = "END";
  const auto messages = Decode(encoder.OnFinished(event, absl::OkStatus()));
  ASSERT_EQ(messages.size(), 1u);
  const vllm_wire::GenerateComplete& complete = messages[0].complete();
  EXPECT_THAT(complete.output_ids(), ElementsAre(7, 8, 9));
  EXPECT_EQ(complete.finish_reason(), "stop");
  EXPECT_EQ(complete.matched_stop_str(), "END");
  EXPECT_EQ(complete.completion_tokens(), 3u);
}

// A client that counts ids then gets the same number as the usage.
TEST(VllmEncoderTest, TheTokenThatEndedItComesToo) {
  for (const FinishReason reason : {FinishReason::kEog, FinishReason::kStopToken}) {
    FinishedEvent event = Finished(reason, 2);
    event.stop_token = 99;
    VllmEncoder whole({});
    whole.OnDelta({.tokens = {7}});
    const auto messages = Decode(whole.OnFinished(event, absl::OkStatus()));
    ASSERT_EQ(messages.size(), 1u);
    EXPECT_THAT(messages[0].complete().output_ids(), ElementsAre(7, 99));
    EXPECT_EQ(messages[0].complete().completion_tokens(), 2u);
    EXPECT_EQ(messages[0].complete().finish_reason(), "stop");
    EXPECT_EQ(messages[0].complete().has_matched_token_id(), reason == FinishReason::kStopToken);

    VllmEncoder stream({.stream = true});
    stream.OnDelta({.tokens = {7}});
    const auto streamed = Decode(stream.OnFinished(event, absl::OkStatus()));
    ASSERT_EQ(streamed.size(), 2u);
    EXPECT_THAT(streamed[0].chunk().token_ids(), ElementsAre(99));
    EXPECT_EQ(streamed[0].chunk().completion_tokens(), 1u);
    EXPECT_EQ(streamed[1].complete().completion_tokens(), 2u);
  }
}

TEST(VllmEncoderTest, TheTokenThatEndedItHasItsLogprob) {
  FinishedEvent event = Finished(FinishReason::kEog, 2);
  event.stop_token = 99;
  event.stop_logprobs = Sampled(99, -0.25f, {{99, -0.25f}, {3, -4.0f}});
  const DeltaEvent delta = {.tokens = {7}, .logprobs = {Sampled(7, -0.5f, {{7, -0.5f}})}};
  VllmEncoder whole({});
  whole.OnDelta(delta);
  const auto messages = Decode(whole.OnFinished(event, absl::OkStatus()));
  ASSERT_EQ(messages.size(), 1u);
  const vllm_wire::OutputLogProbs& all = messages[0].complete().output_logprobs();
  EXPECT_THAT(all.token_ids(), ElementsAre(7, 99));
  EXPECT_THAT(all.token_logprobs(), ElementsAre(-0.5f, -0.25f));
  ASSERT_EQ(all.top_logprobs_size(), 2);
  EXPECT_THAT(all.top_logprobs(1).token_ids(), ElementsAre(99, 3));

  VllmEncoder stream({.stream = true});
  stream.OnDelta(delta);
  const auto streamed = Decode(stream.OnFinished(event, absl::OkStatus()));
  ASSERT_EQ(streamed.size(), 2u);
  EXPECT_THAT(streamed[0].chunk().output_logprobs().token_ids(), ElementsAre(99));
  EXPECT_THAT(streamed[0].chunk().output_logprobs().token_logprobs(), ElementsAre(-0.25f));

  // Each of several samples has its own log-probabilities.
  event.samples = {{.reason = FinishReason::kEog,
                    .stop_string = "",
                    .stop_token = 99,
                    .generated_tokens = 1,
                    .stop_logprobs = Sampled(99, -1.5f, {})},
                   {.reason = FinishReason::kMaxTokens, .stop_string = "", .generated_tokens = 1}};
  VllmEncoder samples({});
  const auto two = Decode(samples.OnFinished(event, absl::OkStatus()));
  ASSERT_EQ(two.size(), 2u);
  EXPECT_THAT(two[0].complete().output_logprobs().token_logprobs(), ElementsAre(-1.5f));
  EXPECT_EQ(two[1].complete().output_logprobs().token_ids_size(), 0);
}

TEST(VllmEncoderTest, EachSampleHasItsEnd) {
  FinishedEvent event = Finished(FinishReason::kMaxTokens, 3);
  event.samples = {
      {.reason = FinishReason::kMaxTokens, .stop_string = "", .generated_tokens = 2},
      {.reason = FinishReason::kEog, .stop_string = "", .stop_token = 99, .generated_tokens = 1}};
  VllmEncoder encoder({});
  encoder.OnDelta({.sample = 0, .tokens = {7, 8}});
  const auto messages = Decode(encoder.OnFinished(event, absl::OkStatus()));
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].complete().index(), 0u);
  EXPECT_THAT(messages[0].complete().output_ids(), ElementsAre(7, 8));
  EXPECT_EQ(messages[0].complete().finish_reason(), "length");
  EXPECT_EQ(messages[1].complete().index(), 1u);
  EXPECT_THAT(messages[1].complete().output_ids(), ElementsAre(99));
  EXPECT_EQ(messages[1].complete().finish_reason(), "stop");
}

TEST(VllmEncoderTest, TheFirstSamplesEndCountsTheGuessesOfAll) {
  for (const bool stream : {false, true}) {
    FinishedEvent event = Finished(FinishReason::kMaxTokens, 3);
    event.draft_tokens = 5;
    event.accepted_draft_tokens = 2;
    VllmEncoder one({.stream = stream});
    one.OnDelta({.tokens = {7}});
    const auto single = Decode(one.OnFinished(event, absl::OkStatus()));
    ASSERT_EQ(single.size(), 1u);
    EXPECT_EQ(single[0].complete().spec_draft_tokens(), 5u);
    EXPECT_EQ(single[0].complete().spec_accepted_tokens(), 2u);

    event.samples = {
        {.reason = FinishReason::kMaxTokens, .stop_string = "", .generated_tokens = 2},
        {.reason = FinishReason::kMaxTokens, .stop_string = "", .generated_tokens = 1}};
    VllmEncoder two({.stream = stream});
    const auto ends = Decode(two.OnFinished(event, absl::OkStatus()));
    ASSERT_EQ(ends.size(), 2u);
    EXPECT_EQ(ends[0].complete().spec_draft_tokens(), 5u);
    EXPECT_EQ(ends[0].complete().spec_accepted_tokens(), 2u);
    EXPECT_EQ(ends[1].complete().spec_draft_tokens(), 0u);
    EXPECT_EQ(ends[1].complete().spec_accepted_tokens(), 0u);
  }
}

TEST(VllmEncoderTest, LogprobsComeWithTheirTokens) {
  for (const bool stream : {true, false}) {
    VllmEncoder encoder({.stream = stream});
    const auto chunk =
        encoder.OnDelta({.tokens = {7, 8},
                         .logprobs = {Sampled(7, -0.5f, {{7, -0.5f}, {3, -1.0f}}),
                                      Sampled(8, -2.0f, {{3, -0.25f}, {8, -2.0f}})}});
    ASSERT_EQ(chunk.has_value(), stream);
    const auto end =
        Decode(encoder.OnFinished(Finished(FinishReason::kMaxTokens, 2), absl::OkStatus()));
    const vllm_wire::OutputLogProbs logprobs =
        stream ? Decode(*chunk).chunk().output_logprobs() : end[0].complete().output_logprobs();
    EXPECT_THAT(logprobs.token_logprobs(), ElementsAre(-0.5f, -2.0f));
    EXPECT_THAT(logprobs.token_ids(), ElementsAre(7, 8));
    ASSERT_EQ(logprobs.top_logprobs_size(), 2);
    EXPECT_THAT(logprobs.top_logprobs(1).values(), ElementsAre(-0.25f, -2.0f));
    EXPECT_THAT(logprobs.top_logprobs(1).token_ids(), ElementsAre(3, 8));
  }
}

TEST(VllmEncoderTest, PromptLogprobsComeWithTheFirstMessage) {
  for (const bool stream : {true, false}) {
    VllmEncoder encoder({.stream = stream, .prompt_logprobs = true, .first_prompt_token = 11});
    // The log-probabilities arrive in as many events as the prompt took steps. None of these events
    // makes a message.
    EXPECT_FALSE(encoder.OnDelta({.prompt_logprobs = {Sampled(12, -1.0f)}}));
    EXPECT_FALSE(encoder.OnDelta({.prompt_logprobs = {Sampled(13, -2.0f, {{4, -0.5f}})}}));
    EXPECT_GT(encoder.held_bytes(), 0u);
    const auto chunk = encoder.OnDelta({.tokens = {7}});
    const auto later = encoder.OnDelta({.tokens = {8}});
    const auto end =
        Decode(encoder.OnFinished(Finished(FinishReason::kMaxTokens, 2), absl::OkStatus()));
    const vllm_wire::InputLogProbs logprobs =
        stream ? Decode(*chunk).chunk().input_logprobs() : end[0].complete().input_logprobs();
    EXPECT_THAT(logprobs.token_ids(), ElementsAre(11, 12, 13));
    ASSERT_EQ(logprobs.token_logprobs_size(), 3);
    EXPECT_FALSE(logprobs.token_logprobs(0).has_value());
    EXPECT_EQ(logprobs.token_logprobs(2).value(), -2.0f);
    EXPECT_THAT(logprobs.top_logprobs(2).token_ids(), ElementsAre(4));
    if (stream) {
      EXPECT_FALSE(Decode(*later).chunk().has_input_logprobs());
      EXPECT_FALSE(end[0].complete().has_input_logprobs());
    }
  }
}

TEST(VllmEncoderTest, AnAbortedRequestEndsWellWithWhatCame) {
  VllmEncoder encoder({});
  encoder.OnDelta({.sample = 1, .tokens = {7}});
  FinishedEvent event = Finished(FinishReason::kCancelled, 2);
  event.samples = {
      {.reason = FinishReason::kEog, .stop_string = "", .stop_token = 99, .generated_tokens = 1},
      {.reason = FinishReason::kCancelled, .stop_string = "", .generated_tokens = 1}};
  const auto end = encoder.OnFinished(event, Cancelled());
  EXPECT_TRUE(end.status.ok());
  const auto messages = Decode(end);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].complete().finish_reason(), "stop");
  EXPECT_EQ(messages[1].complete().finish_reason(), "abort");
  EXPECT_THAT(messages[1].complete().output_ids(), ElementsAre(7));
}

TEST(VllmEncoderTest, AbortedBeforeItStartedItSaysSo) {
  for (const bool stream : {true, false}) {
    VllmEncoder encoder({.stream = stream});
    const auto end = encoder.OnFinished(Finished(FinishReason::kCancelled, 0), Cancelled());
    EXPECT_TRUE(end.status.ok());
    const auto messages = Decode(end);
    ASSERT_EQ(messages.size(), 1u);
    EXPECT_EQ(messages[0].complete().finish_reason(), "abort");
    EXPECT_EQ(messages[0].complete().prompt_tokens(), 5u);
  }
}

TEST(VllmEncoderTest, AFailureHasNoMessagesAndKeepsItsStatus) {
  VllmEncoder encoder({.stream = true});
  FinishedEvent event;
  event.status = MakeError(absl::StatusCode::kResourceExhausted, "full", {.reason = "QUEUE_FULL"});
  const auto end = encoder.OnFinished(event, event.status);
  EXPECT_THAT(end.messages, IsEmpty());
  EXPECT_EQ(end.status, event.status);

  event.status = InvalidField("tokenized.input_ids[0]", "is outside");
  EXPECT_EQ(encoder.OnFinished(event, event.status).status, event.status);
  // The model was unloaded during the request, which nobody asked for.
  event.status = MakeError(absl::StatusCode::kCancelled, "gone", {.reason = "MODEL_UNLOADED"});
  EXPECT_EQ(encoder.OnFinished(event, event.status).status, event.status);
}

TEST(VllmEncoderTest, ASlowReaderAndADrainAreErrors) {
  VllmEncoder encoder({.stream = true});
  const absl::Status slow =
      MakeError(absl::StatusCode::kResourceExhausted, "slow", {.reason = "SLOW_READER"});
  EXPECT_EQ(encoder.OnFinished(Finished(FinishReason::kCancelled, 3), slow).status, slow);

  const absl::Status drained =
      MakeError(absl::StatusCode::kUnavailable, "resume_token_ids", {.reason = "DRAINED"});
  const auto end = encoder.OnFinished(Finished(FinishReason::kDrained, 3), drained);
  EXPECT_THAT(end.messages, IsEmpty());
  EXPECT_EQ(end.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(GetErrorDetails(end.status).reason, "DRAINED");
  // This protocol has no such field.
  EXPECT_EQ(std::string(end.status.message()).find("resume_token_ids"), std::string::npos);
}

}  // namespace
}  // namespace orcd
