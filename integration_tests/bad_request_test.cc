// Requests that the worker must refuse over the wire, with the right code and field and a message
// that says what to change. The worker goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "integration_tests/errors_table.h"
#include "integration_tests/raw_call.h"
#include "integration_tests/worker_fixture.h"

namespace orcd::testing {
namespace {

using ::grpc::StatusCode;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct BadRequest {
  std::string name;
  std::function<void(v1::GenerateRequest&)> spoil;
  // Field of the expected violation.
  const char* field = "";
  StatusCode code = StatusCode::INVALID_ARGUMENT;
};

// Changes the sampling parameters.
std::function<void(v1::GenerateRequest&)> Sampling(std::function<void(v1::SamplingParams&)> spoil) {
  return [spoil](v1::GenerateRequest& request) { spoil(*request.mutable_sampling()); };
}

std::function<void(v1::GenerateRequest&)> Stop(std::function<void(v1::StopConditions&)> spoil) {
  return [spoil](v1::GenerateRequest& request) { spoil(*request.mutable_stop()); };
}

std::vector<BadRequest> BadSampling() {
  std::vector<BadRequest> cases;
  const auto add = [&](const char* name, const char* field, std::vector<float> values,
                       void (v1::SamplingParams::*set)(float)) {
    values.insert(values.end(), {NAN, kInfinity, -kInfinity});
    for (const float value : values) {
      cases.push_back({absl::StrCat(name, " ", value),
                       Sampling([=](v1::SamplingParams& params) { (params.*set)(value); }), field});
    }
  };
  add("temperature", "sampling.temperature", {-0.1f, 100.5f}, &v1::SamplingParams::set_temperature);
  add("top_p", "sampling.top_p", {-0.1f, 0.0f, 1.1f}, &v1::SamplingParams::set_top_p);
  add("min_p", "sampling.min_p", {-0.1f, 1.1f}, &v1::SamplingParams::set_min_p);
  add("typical_p", "sampling.typical_p", {-0.1f, 0.0f, 1.1f}, &v1::SamplingParams::set_typical_p);
  add("repetition_penalty", "sampling.repetition_penalty", {-1.0f, 0.0f, 100.5f},
      &v1::SamplingParams::set_repetition_penalty);
  add("frequency_penalty", "sampling.frequency_penalty", {-100.5f, 100.5f},
      &v1::SamplingParams::set_frequency_penalty);
  add("presence_penalty", "sampling.presence_penalty", {-100.5f, 100.5f},
      &v1::SamplingParams::set_presence_penalty);
  return cases;
}

class BadRequestTest : public WorkerTest {
 protected:
  void SetUp() override {
    WorkerTest::SetUp();
    ASSERT_NO_FATAL_FAILURE(StartLoaded({"--max-context", "2048"}));
    vocab_ = client().Status().model().vocab();
    context_ = client().Status().model().context_length();
  }

  static v1::GenerateRequest Good() { return TextRequest("Hello", 3); }

  void ExpectServes() { ASSERT_TRUE(IsComplete(client().Generate(Good()))); }

  RpcError SendRaw(const std::string& method, const std::string& bytes) {
    return testing::SendRaw(client().channel(), "/orcd.v1.Worker/" + method, bytes);
  }

  uint32_t vocab_ = 0;
  uint32_t context_ = 0;
};

TEST_F(BadRequestTest, EachIsRefusedAndTheWorkerGoesOn) {
  std::vector<BadRequest> cases = BadSampling();
  const uint32_t vocab = vocab_;
  const uint32_t context = context_;
  const std::vector<BadRequest> others = {
      // Prompts.
      {"no prompt", [](v1::GenerateRequest& r) { r.clear_prompt(); }, "prompt"},
      {"empty text", [](v1::GenerateRequest& r) { r.mutable_text()->clear_text(); }, "text.text"},
      {"no ids", [](v1::GenerateRequest& r) { r.mutable_tokens(); }, "tokens.ids"},
      {"id just outside the vocabulary",
       [=](v1::GenerateRequest& r) {
         r.mutable_tokens()->add_ids(0);
         r.mutable_tokens()->add_ids(vocab);
       },
       "tokens.ids[1]"},
      {"largest id", [](v1::GenerateRequest& r) { r.mutable_tokens()->add_ids(0xFFFFFFFF); },
       "tokens.ids[0]"},
      {"id that would be negative",
       [](v1::GenerateRequest& r) { r.mutable_tokens()->add_ids(0x80000000); }, "tokens.ids[0]"},
      {"prompt that fills the context",
       [=](v1::GenerateRequest& r) {
         for (uint32_t i = 0; i < context; ++i) r.mutable_tokens()->add_ids(1);
       },
       "prompt"},
      {"prompt far over the context",
       [](v1::GenerateRequest& r) {
         for (int i = 0; i < 200'000; ++i) r.mutable_tokens()->add_ids(1);
       },
       "prompt"},
      {"long text",
       [](v1::GenerateRequest& r) { r.mutable_text()->set_text(std::string(1 << 20, '7')); },
       "prompt"},
      // Chats.
      {"no messages", [](v1::GenerateRequest& r) { r.mutable_chat(); }, "chat.messages"},
      {"message without a role",
       [](v1::GenerateRequest& r) { r.mutable_chat()->add_messages()->set_content("Hello"); },
       "chat.messages[0].role"},
      {"unknown role",
       [](v1::GenerateRequest& r) {
         v1::ChatMessage* message = r.mutable_chat()->add_messages();
         message->set_role(static_cast<v1::ChatRole>(77));
         message->set_content("Hello");
       },
       "chat.messages[0].role"},
      {"role and its own name",
       [](v1::GenerateRequest& r) {
         r = ChatRequest("Hello", 3);
         r.mutable_chat()->mutable_messages(0)->set_role_name("judge");
       },
       "chat.messages[0].role_name"},
      {"role's name with a capital",
       [](v1::GenerateRequest& r) { r.mutable_chat()->add_messages()->set_role_name("Judge"); },
       "chat.messages[0].role_name"},
      {"content and content in parts",
       [](v1::GenerateRequest& r) {
         r = ChatRequest("Hello", 3);
         r.mutable_chat()->mutable_messages(0)->add_content_parts()->set_text("Hello");
       },
       "chat.messages[0].content_parts"},
      {"image",
       [](v1::GenerateRequest& r) {
         r = ChatRequest("", 3);
         r.mutable_chat()->mutable_messages(0)->add_content_parts()->set_type("image_url");
       },
       "chat.messages[0].content_parts[0].type"},
      {"document that is no object",
       [](v1::GenerateRequest& r) {
         r = ChatRequest("Hello", 3);
         r.mutable_chat()->add_documents_json("[]");
       },
       "chat.documents_json[0]"},
      {"template arguments that are no object",
       [](v1::GenerateRequest& r) {
         r = ChatRequest("Hello", 3);
         r.mutable_chat()->set_template_arguments_json("true");
       },
       "chat.template_arguments_json"},
      {"template argument with the name of a field",
       [](v1::GenerateRequest& r) {
         r = ChatRequest("Hello", 3);
         r.mutable_chat()->set_template_arguments_json(R"({"messages": []})");
       },
       "chat.template_arguments_json"},
      {"tool choice without tools",
       [](v1::GenerateRequest& r) {
         r = ChatRequest("Hello", 3);
         r.mutable_chat()->mutable_tool_choice()->set_mode(v1::TOOL_CHOICE_MODE_REQUIRED);
       },
       "chat.tool_choice"},
      {"choice of an unknown tool",
       [](v1::GenerateRequest& r) {
         r = ChatRequest("Hello", 3);
         r.mutable_chat()->add_tools_json(R"({"type": "function", "function": {"name": "f"}})");
         r.mutable_chat()->mutable_tool_choice()->set_function("g");
       },
       "chat.tool_choice.function"},
      {"continued message and generation prompt",
       [](v1::GenerateRequest& r) {
         r = ChatRequest("Hello", 3);
         r.mutable_chat()->set_continue_final_message(true);
         r.mutable_chat()->set_add_generation_prompt(true);
       },
       "chat.continue_final_message"},
      {"template of its own",
       [](v1::GenerateRequest& r) {
         r = ChatRequest("Hello", 3);
         r.mutable_chat()->set_chat_template("{{ messages[0].content }}");
       },
       "chat.chat_template"},
      {"tool that is no JSON",
       [](v1::GenerateRequest& r) {
         r = ChatRequest("Hello", 3);
         r.mutable_chat()->add_tools_json("{not json");
       },
       "chat.tools_json[0]"},
      {"tool that is no object",
       [](v1::GenerateRequest& r) {
         r = ChatRequest("Hello", 3);
         r.mutable_chat()->add_tools_json("[1, 2]");
       },
       "chat.tools_json[0]"},
      {"tool call whose arguments are no JSON",
       [](v1::GenerateRequest& r) {
         r = ChatRequest("Hello", 3);
         v1::ChatMessage* message = r.mutable_chat()->add_messages();
         message->set_role(v1::CHAT_ROLE_ASSISTANT);
         v1::ToolCall* call = message->add_tool_calls();
         call->set_name("f");
         call->set_arguments_json("{");
       },
       "chat.messages[1].tool_calls[0].arguments_json"},
      // Sampling beyond the ranges of its numbers.
      {"bias of an unknown id",
       Sampling([=](v1::SamplingParams& s) { (*s.mutable_logit_bias())[vocab] = 1; }),
       "sampling.logit_bias"},
      {"bias of the largest id",
       Sampling([](v1::SamplingParams& s) { (*s.mutable_logit_bias())[0xFFFFFFFF] = 1; }),
       "sampling.logit_bias"},
      {"bias that is no number",
       Sampling([](v1::SamplingParams& s) { (*s.mutable_logit_bias())[5] = NAN; }),
       "sampling.logit_bias"},
      {"infinite bias",
       Sampling([](v1::SamplingParams& s) { (*s.mutable_logit_bias())[5] = -kInfinity; }),
       "sampling.logit_bias"},
      {"bias out of range",
       Sampling([](v1::SamplingParams& s) { (*s.mutable_logit_bias())[5] = 1001; }),
       "sampling.logit_bias"},
      {"too many logprobs", [](v1::GenerateRequest& r) { r.set_logprobs(21); }, "logprobs"},
      {"logprobs that would be negative",
       [](v1::GenerateRequest& r) { r.set_logprobs(0xFFFFFFFF); }, "logprobs"},
      // Prompt log-probabilities, samples, priority, caching and resumption.
      {"too many prompt logprobs", [](v1::GenerateRequest& r) { r.set_prompt_logprobs(21); },
       "prompt_logprobs"},
      {"zero samples", [](v1::GenerateRequest& r) { r.set_samples(0); }, "samples"},
      {"too many samples", [](v1::GenerateRequest& r) { r.set_samples(65); }, "samples"},
      {"priority below its range", [](v1::GenerateRequest& r) { r.set_priority(-11); }, "priority"},
      {"priority above its range", [](v1::GenerateRequest& r) { r.set_priority(11); }, "priority"},
      {"long salt",
       [](v1::GenerateRequest& r) { r.mutable_cache()->set_salt(std::string(257, 's')); },
       "cache.salt"},
      {"resumed from an unknown id", [=](v1::GenerateRequest& r) { r.add_resume_token_ids(vocab); },
       "resume_token_ids[0]"},
      {"resumed with nothing left to generate",
       [](v1::GenerateRequest& r) {
         for (uint32_t id = 40; id < 43; ++id) r.add_resume_token_ids(id);
       },
       "resume_token_ids"},
      {"resumed with samples",
       [](v1::GenerateRequest& r) {
         r.set_samples(2);
         r.add_resume_token_ids(40);
       },
       "samples"},
      {"resumed from what had stopped",
       [](v1::GenerateRequest& r) {
         r.mutable_stop()->add_token_ids(40);
         r.add_resume_token_ids(40);
       },
       "resume_token_ids[0]"},
      // Stops.
      {"zero max tokens", Stop([](v1::StopConditions& s) { s.set_max_tokens(0); }),
       "stop.max_tokens"},
      {"min tokens over max tokens", Stop([](v1::StopConditions& s) { s.set_min_tokens(4); }),
       "stop.min_tokens"},
      {"largest min tokens", Stop([](v1::StopConditions& s) { s.set_min_tokens(0xFFFFFFFF); }),
       "stop.min_tokens"},
      {"empty stop string", Stop([](v1::StopConditions& s) {
         s.add_strings("fine");
         s.add_strings("");
       }),
       "stop.strings[1]"},
      {"long stop string",
       Stop([](v1::StopConditions& s) { s.add_strings(std::string(257, 'x')); }),
       "stop.strings[0]"},
      {"too many stop strings", Stop([](v1::StopConditions& s) {
         for (int i = 0; i < 17; ++i) s.add_strings(absl::StrCat("stop", i));
       }),
       "stop.strings"},
      {"unknown stop id", Stop([=](v1::StopConditions& s) { s.add_token_ids(vocab); }),
       "stop.token_ids[0]"},
      {"too many stop ids", Stop([](v1::StopConditions& s) {
         for (int i = 0; i < 65; ++i) s.add_token_ids(i);
       }),
       "stop.token_ids"},
      // Names.
      {"id with a space", [](v1::GenerateRequest& r) { r.set_request_id("a b"); }, "request_id"},
      {"id with a newline", [](v1::GenerateRequest& r) { r.set_request_id("a\n"); }, "request_id"},
      {"id beyond ASCII", [](v1::GenerateRequest& r) { r.set_request_id("\xC3\xA9"); },
       "request_id"},
      {"long id", [](v1::GenerateRequest& r) { r.set_request_id(std::string(129, 'x')); },
       "request_id"},
      {"unknown model", [](v1::GenerateRequest& r) { r.set_model_id("gpt-5"); }, "",
       StatusCode::NOT_FOUND},
  };
  cases.insert(cases.end(), others.begin(), others.end());
  ErrorsTable table("Bad requests");
  for (const BadRequest& bad : cases) {
    v1::GenerateRequest request = Good();
    bad.spoil(request);
    SCOPED_TRACE(absl::StrCat(bad.name, ": ", request.ShortDebugString().substr(0, 200)));
    const Generation generation = client().Generate(request);
    EXPECT_TRUE(IsError(generation.error, bad.code));
    EXPECT_FALSE(generation.started);
    if (*bad.field != '\0') {
      // The violation names the field, or a part of it.
      const bool named =
          std::any_of(generation.error.fields.begin(), generation.error.fields.end(),
                      [&](const std::string& field) { return field.starts_with(bad.field); });
      EXPECT_TRUE(named) << generation.error;
    }
    EXPECT_GE(generation.error.message.size(), 15u) << "says too little";
    table.Add(bad.name, generation.error);
    ASSERT_NO_FATAL_FAILURE(ExpectServes());
  }
  EXPECT_TRUE(client().WaitForQuiet());
  EXPECT_TRUE(table.IsInTheDocument());
}

// The ends of the ranges are allowed.
TEST_F(BadRequestTest, BoundsAreAllowed) {
  const uint32_t vocab = vocab_;
  const std::vector<std::function<void(v1::GenerateRequest&)>> fine = {
      Sampling([](v1::SamplingParams& s) { s.set_temperature(0); }),
      Sampling([](v1::SamplingParams& s) { s.set_temperature(100); }),
      Sampling([](v1::SamplingParams& s) { s.set_temperature(1e-6f); }),
      Sampling([](v1::SamplingParams& s) { s.set_top_k(0xFFFFFFFF); }),
      Sampling([](v1::SamplingParams& s) { s.set_top_p(1e-9f); }),
      Sampling([](v1::SamplingParams& s) { s.set_top_p(1); }),
      Sampling([](v1::SamplingParams& s) { s.set_min_p(0); }),
      Sampling([](v1::SamplingParams& s) { s.set_min_p(1); }),
      Sampling([](v1::SamplingParams& s) { s.set_typical_p(1e-9f); }),
      Sampling([](v1::SamplingParams& s) { s.set_repetition_penalty(100); }),
      Sampling([](v1::SamplingParams& s) { s.set_repetition_penalty(1e-6f); }),
      Sampling([](v1::SamplingParams& s) { s.set_frequency_penalty(-100); }),
      Sampling([](v1::SamplingParams& s) { s.set_presence_penalty(100); }),
      Sampling([=](v1::SamplingParams& s) {
        for (uint32_t i = 0; i < 1024 && i < vocab; ++i) (*s.mutable_logit_bias())[i] = -1000;
      }),
      Stop([=](v1::StopConditions& s) {
        for (int i = 0; i < 16; ++i) s.add_strings(std::string(256, static_cast<char>('a' + i)));
        for (int i = 0; i < 64; ++i) s.add_token_ids(vocab - 1 - i);
        s.set_min_tokens(3);
      }),
      [](v1::GenerateRequest& r) { r.set_logprobs(20); },
      [](v1::GenerateRequest& r) { r.set_request_id(std::string(128, 'x')); },
      [](v1::GenerateRequest& r) { r.set_request_id("Az09._:-"); },
      [](v1::GenerateRequest& r) { r.set_model_id("nano"); },
      [](v1::GenerateRequest& r) { r.mutable_text()->set_text(std::string("a\0b", 3)); },
  };
  for (size_t i = 0; i < fine.size(); ++i) {
    v1::GenerateRequest request = Good();
    fine[i](request);
    EXPECT_TRUE(IsComplete(client().Generate(request)))
        << "case " << i << ": " << request.ShortDebugString().substr(0, 200);
  }
}

// If max_tokens exceeds the rest of the context, the worker generates as many tokens as fit.
TEST_F(BadRequestTest, LargestMaxTokensMeansWhatFits) {
  v1::GenerateRequest request = TokenRequest(std::vector<uint32_t>(context_ - 3, 10), 0xFFFFFFFF);
  request.mutable_stop()->set_ignore_eog(true);
  const Generation generation = client().Generate(request);
  ASSERT_TRUE(IsComplete(generation));
  EXPECT_EQ(generation.ids.size(), 3u);
  EXPECT_EQ(generation.reason(), v1::FINISH_REASON_CONTEXT_LENGTH);
}

TEST_F(BadRequestTest, BytesThatAreNoRequestAreRefused) {
  // Field 3 (text) with field 1 (text) inside: two bytes that are not UTF-8.
  const std::string invalid_utf8("\x1A\x04\x0A\x02\xFF\xFE", 6);
  // Field 1 (request_id), not UTF-8.
  const std::string invalid_id("\x0A\x01\xFF", 3);
  const std::string truncated("\x1A\x7F\x0A", 3);
  const std::string bad_wire_type("\x0F\x0F\x0F", 3);
  for (const char* method : {"Generate", "Cancel", "Tokenize", "Load", "Unload", "Drain"}) {
    for (const std::string& bytes : {truncated, bad_wire_type}) {
      SCOPED_TRACE(method);
      EXPECT_TRUE(IsError(SendRaw(method, bytes), StatusCode::INVALID_ARGUMENT));
    }
  }
  EXPECT_TRUE(IsError(SendRaw("Generate", invalid_utf8), StatusCode::INVALID_ARGUMENT));
  EXPECT_TRUE(IsError(SendRaw("Generate", invalid_id), StatusCode::INVALID_ARGUMENT));
  EXPECT_TRUE(IsError(SendRaw("Cancel", invalid_id), StatusCode::INVALID_ARGUMENT));
  EXPECT_TRUE(IsError(SendRaw("Load", invalid_id), StatusCode::INVALID_ARGUMENT));
  EXPECT_EQ(SendRaw("NoSuchMethod", "").code, StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(client().Status().state(), v1::WORKER_STATE_READY);
  ASSERT_NO_FATAL_FAILURE(ExpectServes());
}

TEST_F(BadRequestTest, MessageOverTheLimitIsRefused) {
  const Generation generation =
      client().Generate(TextRequest(std::string(32 << 20, 'x'), 3), absl::Seconds(60));
  EXPECT_EQ(generation.error.code, StatusCode::RESOURCE_EXHAUSTED) << generation.error;
  ASSERT_NO_FATAL_FAILURE(ExpectServes());
}

// A compressed message that inflates to gigabytes would pass for a small one.
TEST_F(BadRequestTest, CompressedMessagesAreRefused) {
  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  v1::TokenizeRequest request;
  request.mutable_text()->set_text(std::string(1 << 20, 'x'));
  v1::TokenizeResponse response;
  EXPECT_EQ(stub().Tokenize(&context, request, &response).error_code(), StatusCode::UNIMPLEMENTED);
  ASSERT_NO_FATAL_FAILURE(ExpectServes());
}

TEST_F(BadRequestTest, OtherCallsCheckTheirArgumentsToo) {
  ErrorsTable table("Other bad calls");
  const auto expect = [&](const std::string& call, RpcError error, StatusCode code,
                          const std::string& reason, const std::string& field = "") {
    SCOPED_TRACE(call);
    EXPECT_TRUE(IsError(error, code, reason, field));
    error.message = absl::StrReplaceAll(error.message, {{models().path().string(), "models"}});
    table.Add(call, error);
  };
  const auto tokenize = [&](const v1::TokenizeRequest& request) {
    std::vector<uint32_t> ids;
    return client().Tokenize(request, &ids);
  };
  v1::TokenizeRequest text;
  expect("Tokenize without an input", tokenize(text), StatusCode::INVALID_ARGUMENT,
         "INVALID_FIELD");
  text.mutable_text()->set_text("Hello");
  text.set_model_id("gpt-5");
  expect("Tokenize for an unknown model", tokenize(text), StatusCode::NOT_FOUND, "MODEL_NOT_FOUND");

  expect("Cancel without an id", client().Cancel(""), StatusCode::INVALID_ARGUMENT, "INVALID_FIELD",
         "request_id");
  expect("Cancel of an id with a space", client().Cancel("a b"), StatusCode::INVALID_ARGUMENT,
         "INVALID_FIELD", "request_id");

  const auto unload = [&](const std::string& model_id) {
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(10));
    v1::UnloadRequest request;
    request.set_model_id(model_id);
    v1::UnloadResponse response;
    return DecodeError(stub().Unload(&context, request, &response));
  };
  expect("Unload of an unknown model", unload("gpt-5"), StatusCode::NOT_FOUND, "MODEL_NOT_FOUND");

  const auto load = [&](const std::function<void(v1::LoadRequest&)>& spoil) {
    v1::LoadRequest request;
    request.set_model("nano.gguf");
    request.set_replace(true);
    spoil(request);
    return client().Load(request).error;
  };
  expect("Load without a model", load([](v1::LoadRequest& r) { r.clear_model(); }),
         StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "model");
  expect("Load of a file that is not there",
         load([](v1::LoadRequest& r) { r.set_model("none.gguf"); }), StatusCode::NOT_FOUND,
         "MODEL_NOT_FOUND");
  for (const char* path : {"../nano.gguf", "/etc/passwd", "."}) {
    expect(absl::StrCat("Load of ", path), load([&](v1::LoadRequest& r) { r.set_model(path); }),
           StatusCode::INVALID_ARGUMENT, "MODEL_PATH_NOT_ALLOWED");
  }
  expect("Load with a sum of 63 digits",
         load([](v1::LoadRequest& r) { r.set_sha256(std::string(63, 'a')); }),
         StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "sha256");
  expect("Load with another file's sum",
         load([](v1::LoadRequest& r) { r.set_sha256(std::string(64, 'a')); }),
         StatusCode::DATA_LOSS, "SHA256_MISMATCH");
  ASSERT_TRUE(client().Load("nano.gguf").loaded) << "it is found out before anything is replaced";
  expect("Load with a long model_id",
         load([](v1::LoadRequest& r) { r.set_model_id(std::string(257, 'x')); }),
         StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "model_id");
  expect("Load with a newline in its model_id",
         load([](v1::LoadRequest& r) { r.set_model_id("a\nb"); }), StatusCode::INVALID_ARGUMENT,
         "INVALID_FIELD", "model_id");
  expect("Load over another model", load([](v1::LoadRequest& r) {
           r.set_model_id("other");
           r.set_replace(false);
         }),
         StatusCode::FAILED_PRECONDITION, "MODEL_LOADED");

  expect("Generate of bytes that are no message", SendRaw("Generate", "\x1A\x7F\x0A"),
         StatusCode::INVALID_ARGUMENT, "MALFORMED_REQUEST");
  expect("Generate of text that is not UTF-8", SendRaw("Generate", "\x1A\x04\x0A\x02\xFF\xFE"),
         StatusCode::INVALID_ARGUMENT, "MALFORMED_REQUEST");
  EXPECT_TRUE(table.IsInTheDocument());
  ASSERT_NO_FATAL_FAILURE(ExpectServes());
}

class NoModelTest : public WorkerTest {};

TEST_F(NoModelTest, WorkNeedsAModel) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  const Generation generation = client().Generate(TextRequest("Hello", 3));
  EXPECT_TRUE(IsError(generation.error, StatusCode::FAILED_PRECONDITION, "MODEL_NOT_LOADED"));
  EXPECT_TRUE(generation.error.has_precondition_failure);
  v1::TokenizeRequest tokenize;
  tokenize.mutable_text()->set_text("Hello");
  std::vector<uint32_t> ids;
  EXPECT_TRUE(IsError(client().Tokenize(tokenize, &ids), StatusCode::FAILED_PRECONDITION,
                      "MODEL_NOT_LOADED"));
  bool found = true;
  EXPECT_TRUE(client().Cancel("nobody", &found).ok());
  EXPECT_FALSE(found);
  v1::UnloadResponse unloaded;
  EXPECT_TRUE(client().Unload(false, &unloaded).ok());
  EXPECT_EQ(unloaded.model_id(), "");
}

}  // namespace
}  // namespace orcd::testing
