// Messages to vllm.grpc.engine.VllmEngine that the worker must refuse over the wire: with the code
// and field that this protocol's clients know, and a message that says what to change. The worker
// goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "integration_tests/errors_table.h"
#include "integration_tests/raw_call.h"
#include "integration_tests/vllm_client.h"
#include "integration_tests/worker_fixture.h"

namespace orcd::testing {
namespace {

using ::grpc::StatusCode;
using Request = vllm_wire::GenerateRequest;
using Params = vllm_wire::SamplingParams;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kLeast = std::numeric_limits<int32_t>::min();
constexpr int32_t kMost = std::numeric_limits<int32_t>::max();

// A request as bytes, and the field that the error must name.
struct BadMessage {
  std::string name;
  std::string bytes;
  std::string field;
  std::string reason = "INVALID_FIELD";
};

Request Good() {
  Request request;
  request.mutable_tokenized()->add_input_ids(40);
  request.mutable_sampling_params()->set_max_tokens(3);
  return request;
}

BadMessage Bad(const std::string& name, const std::string& field,
               const std::function<void(Request&)>& spoil,
               const std::string& reason = "INVALID_FIELD") {
  Request request = Good();
  spoil(request);
  return {name, request.SerializeAsString(), field, reason};
}

BadMessage BadParams(const std::string& name, const std::string& field,
                     const std::function<void(Params&)>& spoil) {
  return Bad(name, "sampling_params." + field,
             [&](Request& request) { spoil(*request.mutable_sampling_params()); });
}

// Appends bytes to a good request.
BadMessage Malformed(const std::string& name, const std::string& bytes) {
  return {name, Good().SerializeAsString() + bytes, "vllm.grpc.engine.GenerateRequest",
          "MALFORMED_REQUEST"};
}

std::string Bytes(std::initializer_list<int> bytes) {
  std::string result;
  for (const int byte : bytes) result.push_back(static_cast<char>(byte));
  return result;
}

void AddNumbers(std::vector<BadMessage>& cases) {
  const auto add = [&](const std::string& name, std::vector<float> values,
                       void (Params::*set)(float)) {
    values.insert(values.end(), {NAN, kInfinity, -kInfinity});
    for (const float value : values) {
      cases.push_back(BadParams(absl::StrCat(name, " ", value), name,
                                [&](Params& params) { (params.*set)(value); }));
    }
  };
  add("temperature", {-0.1f, 100.5f}, &Params::set_temperature);
  add("top_p", {-0.1f, 1.1f}, &Params::set_top_p);
  add("min_p", {-0.1f, 1.1f}, &Params::set_min_p);
  add("repetition_penalty", {-1.0f, 100.5f}, &Params::set_repetition_penalty);
  add("frequency_penalty", {-100.5f, 100.5f}, &Params::set_frequency_penalty);
  add("presence_penalty", {-100.5f, 100.5f}, &Params::set_presence_penalty);
  for (const int32_t count : {21, -1, kLeast, kMost}) {
    cases.push_back(BadParams(absl::StrCat("logprobs ", count), "logprobs",
                              [&](Params& p) { p.set_logprobs(count); }));
    cases.push_back(BadParams(absl::StrCat("prompt_logprobs ", count), "prompt_logprobs",
                              [&](Params& p) { p.set_prompt_logprobs(count); }));
  }
  for (const uint32_t n : {65U, 0x80000000U, 0xFFFFFFFFU}) {
    cases.push_back(BadParams(absl::StrCat("n ", n), "n", [&](Params& p) { p.set_n(n); }));
  }
}

void AddWhatIsNotServed(std::vector<BadMessage>& cases) {
  const auto params = [&](const std::string& name, const std::string& field,
                          const std::function<void(Params&)>& spoil) {
    cases.push_back(BadParams(name, field, spoil));
  };
  params("truncate_prompt_tokens", "truncate_prompt_tokens",
         [](Params& p) { p.set_truncate_prompt_tokens(5); });
  params("truncate_prompt_tokens -1", "truncate_prompt_tokens",
         [](Params& p) { p.set_truncate_prompt_tokens(-1); });
  const auto add = [&](const std::string& name, const std::string& field,
                       const std::function<void(Request&)>& spoil) {
    cases.push_back(Bad(name, field, spoil));
  };
  add("kv_transfer_params", "kv_transfer_params",
      [](Request& r) { r.mutable_kv_transfer_params(); });
  add("kv_transfer_params_json", "kv_transfer_params_json",
      [](Request& r) { r.set_kv_transfer_params_json("{\"do_remote_prefill\":true}"); });
  add("empty kv_transfer_params_json", "kv_transfer_params_json",
      [](Request& r) { r.set_kv_transfer_params_json(""); });
  add("mm_inputs", "mm_inputs", [](Request& r) { r.mutable_mm_inputs(); });
  add("extra_mm_inputs", "extra_mm_inputs", [](Request& r) { r.add_extra_mm_inputs(); });
  add("thousands of extra_mm_inputs", "extra_mm_inputs", [](Request& r) {
    for (int i = 0; i < 5000; ++i) r.add_extra_mm_inputs();
  });
  add("media_refs", "media_refs", [](Request& r) { r.mutable_media_refs(); });
  for (const int32_t rank : {1, -1, kLeast, kMost}) {
    add(absl::StrCat("data_parallel_rank ", rank), "data_parallel_rank",
        [&](Request& r) { r.set_data_parallel_rank(rank); });
  }
}

void AddPromptsAndNames(uint32_t vocab, uint32_t context, std::vector<BadMessage>& cases) {
  const auto add = [&](const std::string& name, const std::string& field,
                       const std::function<void(Request&)>& spoil,
                       const std::string& reason = "INVALID_FIELD") {
    cases.push_back(Bad(name, field, spoil, reason));
  };
  const auto ids = [](std::vector<uint32_t> added) {
    return [added](Request& r) {
      r.mutable_tokenized()->mutable_input_ids()->Add(added.begin(), added.end());
    };
  };
  add("no input", "input", [](Request& r) { r.clear_input(); });
  add("no ids", "tokenized.input_ids", [](Request& r) { r.mutable_tokenized()->Clear(); });
  add("empty text", "text", [](Request& r) { r.set_text(""); });
  add("id just outside the vocabulary", "tokenized.input_ids[1]", ids({vocab}));
  add("id that would be negative", "tokenized.input_ids[2]", ids({7, 0x80000000}));
  add("largest id", "tokenized.input_ids[1]", ids({0xFFFFFFFF}));
  add("prompt that fills the context", "input", ids(std::vector<uint32_t>(context - 1, 41)),
      "PROMPT_TOO_LONG");
  add("prompt far over the context", "input", ids(std::vector<uint32_t>(1'000'000, 41)),
      "PROMPT_TOO_LONG");
  add(
      "long text", "input", [](Request& r) { r.set_text(std::string(1 << 20, '7')); },
      "PROMPT_TOO_LONG");
  add("id with a space", "request_id", [](Request& r) { r.set_request_id("a b"); });
  add("id with a newline", "request_id", [](Request& r) { r.set_request_id("a\n"); });
  add("id with a zero", "request_id", [](Request& r) { r.set_request_id(std::string(1, '\0')); });
  add("id beyond ASCII", "request_id", [](Request& r) { r.set_request_id("\xC3\xA9"); });
  add("long id", "request_id", [](Request& r) { r.set_request_id(std::string(129, 'x')); });
  add("very long id", "request_id",
      [](Request& r) { r.set_request_id(std::string(1 << 20, 'x')); });
}

void AddStopsAndBiases(uint32_t vocab, std::vector<BadMessage>& cases) {
  const auto add = [&](const std::string& name, const std::string& field,
                       const std::function<void(Params&)>& spoil) {
    cases.push_back(BadParams(name, field, spoil));
  };
  add("zero max_tokens", "max_tokens", [](Params& p) { p.set_max_tokens(0); });
  add("min_tokens over max_tokens", "min_tokens", [](Params& p) { p.set_min_tokens(4); });
  add("largest min_tokens", "min_tokens", [](Params& p) { p.set_min_tokens(0xFFFFFFFF); });
  add("empty stop string", "stop[1]", [](Params& p) {
    p.add_stop("fine");
    p.add_stop("");
  });
  add("long stop string", "stop[0]", [](Params& p) { p.add_stop(std::string(257, 'x')); });
  add("too many stop strings", "stop", [](Params& p) {
    for (int i = 0; i < 17; ++i) p.add_stop(absl::StrCat("stop", i));
  });
  add("a hundred thousand stop strings", "stop", [](Params& p) {
    for (int i = 0; i < 100'000; ++i) p.add_stop("stop");
  });
  add("unknown stop id", "stop_token_ids[0]", [=](Params& p) { p.add_stop_token_ids(vocab); });
  add("largest stop id", "stop_token_ids[0]", [](Params& p) { p.add_stop_token_ids(0xFFFFFFFF); });
  add("too many stop ids", "stop_token_ids", [](Params& p) {
    for (uint32_t i = 0; i < 65; ++i) p.add_stop_token_ids(i);
  });
  const auto bias = [&](const std::string& name, int32_t id, float value) {
    add(name, "logit_bias", [=](Params& p) { (*p.mutable_logit_bias())[id] = value; });
  };
  bias("bias of an unknown id", static_cast<int32_t>(vocab), 1);
  bias("bias of id -1", -1, 1);
  bias("bias of the least id", kLeast, 1);
  bias("bias of the largest id", kMost, 1);
  bias("bias that is no number", 5, NAN);
  bias("infinite bias", 5, -kInfinity);
  bias("bias out of range", 5, 1001);
  add("a hundred thousand biases", "logit_bias", [](Params& p) {
    for (int32_t i = 0; i < 100'000; ++i) (*p.mutable_logit_bias())[i] = 0;
  });
}

void AddBytes(std::vector<BadMessage>& cases) {
  const auto add = [&](const std::string& name, std::initializer_list<int> bytes) {
    cases.push_back(Malformed(name, Bytes(bytes)));
  };
  add("a tag without its value", {0x28});
  add("a tag that is cut off", {0x80});
  add("field number 0", {0x00, 0x01});
  add("a tag of more than ten bytes",
      {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01});
  add("a number of more than ten bytes",
      {0x28, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01});
  add("a length past the end", {0x12, 0x7F, 0x12});
  add("a length of 4 GiB", {0x12, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F});
  add("a length that would be negative",
      {0x12, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01});
  add("ids longer than their message", {0x12, 0x03, 0x12, 0x05, 0x01});
  add("ids that are cut off", {0x12, 0x03, 0x12, 0x01, 0x80});
  add("parameters that are cut off", {0x22, 0x02, 0x0D, 0x00});
  add("a bias that is cut off", {0x22, 0x06, 0xD2, 0x01, 0x03, 0x08, 0x05, 0x15});
  add("wire type 6", {0x2E});
  add("wire type 7", {0x2F, 0x01});
  add("a group that does not end", {0x2B});
  add("the end of a group that did not begin", {0x2C});
  add("an unknown field that is cut off", {0xFA, 0x7F, 0x05, 0x01});
  add("an id that is not UTF-8", {0x0A, 0x01, 0xFF});
  add("a text that is not UTF-8", {0x1A, 0x02, 0xFF, 0xFE});
  add("a stop string that is not UTF-8", {0x22, 0x03, 0x52, 0x01, 0xC3});
  add("a schema that is not UTF-8", {0x22, 0x04, 0x82, 0x01, 0x01, 0x80});
  add("a half of a surrogate pair", {0x1A, 0x03, 0xED, 0xA0, 0x80});
  // Groups nested deeper than parsers accept.
  cases.push_back(Malformed("ten thousand groups", std::string(10'000, '\x2B')));
  // Known fields with another wire type count as unknown; these requests then have no input.
  cases.push_back({"tokenized as a number", Bytes({0x10, 0x05}), "input"});
  cases.push_back({"text as a number", Bytes({0x18, 0x05}), "input"});
  cases.push_back({"ids as 64-bit numbers", Bytes({0x12, 0x09, 0x11, 1, 2, 3, 4, 5, 6, 7, 8}),
                   "tokenized.input_ids"});
  cases.push_back({"nothing at all", "", "input"});
  cases.push_back(
      {"nothing but unknown fields", Bytes({0xF8, 0x7F, 0x01, 0xFA, 0x7F, 0x00}), "input"});
}

class VllmBadRequestTest : public WorkerTest {
 protected:
  void SetUp() override {
    WorkerTest::SetUp();
    ASSERT_NO_FATAL_FAILURE(StartLoaded({"--max-context", "2048"}));
    vocab_ = client().Status().model().vocab();
    context_ = client().Status().model().context_length();
  }

  RpcError Send(const std::string& method, const std::string& bytes) {
    return SendRaw(client().channel(), "/vllm.grpc.engine.VllmEngine/" + method, bytes);
  }

  void ExpectServes() {
    const RpcError error = Send("Generate", Good().SerializeAsString());
    ASSERT_TRUE(error.ok()) << error;
  }

  uint32_t vocab_ = 0;
  uint32_t context_ = 0;
};

TEST_F(VllmBadRequestTest, EachIsRefusedAndTheWorkerGoesOn) {
  std::vector<BadMessage> cases;
  AddNumbers(cases);
  AddWhatIsNotServed(cases);
  AddPromptsAndNames(vocab_, context_, cases);
  AddStopsAndBiases(vocab_, cases);
  AddBytes(cases);
  EXPECT_GE(cases.size(), 100u);
  ErrorsTable table("Bad requests to VllmEngine");
  for (const BadMessage& bad : cases) {
    SCOPED_TRACE(bad.name);
    const RpcError error = Send("Generate", bad.bytes);
    EXPECT_TRUE(IsError(error, StatusCode::INVALID_ARGUMENT, bad.reason));
    // The violation names the field, or a part of it.
    const bool named =
        std::any_of(error.fields.begin(), error.fields.end(),
                    [&](const std::string& field) { return field.starts_with(bad.field); });
    EXPECT_TRUE(named) << error;
    EXPECT_GE(error.message.size(), 15u) << "says too little";
    table.Add(bad.name, error);
    ASSERT_NO_FATAL_FAILURE(ExpectServes());
  }
  EXPECT_TRUE(client().WaitForQuiet());
  EXPECT_TRUE(table.IsInTheDocument());
}

// Fields that gateways of other versions may add, and the ends of the ranges.
TEST_F(VllmBadRequestTest, WhatIsAllowed) {
  const std::string good = Good().SerializeAsString();
  std::vector<std::string> fine = {
      // Unknown fields: a number, bytes, a group, 32 and 64 bits.
      good + Bytes({0xF8, 0x7F, 0x01}), good + Bytes({0xFA, 0x7F, 0x02, 0xFF, 0xFE}),
      good + Bytes({0xFB, 0x7F, 0xFC, 0x7F}), good + Bytes({0xFD, 0x7F, 1, 2, 3, 4}),
      good + Bytes({0xF9, 0x7F, 1, 2, 3, 4, 5, 6, 7, 8}),
      // The last field of a oneof counts; varints may be longer than necessary.
      Bytes({0x1A, 0x01, 0x78}) + good, good + Bytes({0x28, 0x80, 0x80, 0x00}),
      // Ids that are not packed.
      Bytes({0x12, 0x04, 0x10, 0x28, 0x10, 0x29, 0x22, 0x02, 0x40, 0x03}),
      // The worker does not read original_text, so it need not be UTF-8.
      Bytes({0x12, 0x06, 0x0A, 0x02, 0xFF, 0xFE, 0x10, 0x28, 0x22, 0x02, 0x40, 0x03})};
  const auto allow = [&](const std::function<void(Params&)>& set) {
    Request request = Good();
    set(*request.mutable_sampling_params());
    fine.push_back(request.SerializeAsString());
  };
  allow([](Params& p) { p.set_temperature(0); });
  allow([](Params& p) { p.set_temperature(100); });
  allow([](Params& p) { p.set_top_p(-0.0f); });
  allow([](Params& p) { p.set_top_k(0xFFFFFFFF); });
  allow([](Params& p) { p.set_min_p(1); });
  allow([](Params& p) { p.set_repetition_penalty(100); });
  allow([](Params& p) { p.set_frequency_penalty(-100); });
  allow([](Params& p) { p.set_max_tokens(0xFFFFFFFF); });
  allow([](Params& p) { p.set_min_tokens(3); });
  allow([](Params& p) { p.set_seed(kLeast); });
  allow([](Params& p) { p.set_logprobs(20); });
  allow([](Params& p) { p.set_prompt_logprobs(0); });
  allow([](Params& p) { p.set_n(64); });
  allow([](Params& p) { p.set_json_object(false); });
  for (size_t i = 0; i < fine.size(); ++i) {
    const RpcError error = Send("Generate", fine[i]);
    EXPECT_TRUE(error.ok()) << "case " << i << ": " << error;
  }
}

TEST_F(VllmBadRequestTest, OtherCallsCheckTheirArgumentsToo) {
  ErrorsTable table("Other bad calls of VllmEngine");
  const auto expect = [&](const std::string& name, const std::string& method,
                          const std::string& bytes, const std::string& reason,
                          const std::string& field) {
    SCOPED_TRACE(name);
    const RpcError error = Send(method, bytes);
    EXPECT_TRUE(IsError(error, StatusCode::INVALID_ARGUMENT, reason, field));
    table.Add(name, error);
  };
  vllm_wire::AbortRequest many;
  for (int i = 0; i < 4097; ++i) many.add_request_ids("x");
  expect("Abort of 4097 ids", "Abort", many.SerializeAsString(), "INVALID_FIELD", "request_ids");
  many.mutable_request_ids()->RemoveLast();
  EXPECT_TRUE(Send("Abort", many.SerializeAsString()).ok());
  expect("Abort of an id that is not UTF-8", "Abort", Bytes({0x0A, 0x01, 0xFF}),
         "MALFORMED_REQUEST", "vllm.grpc.engine.AbortRequest");
  expect("Abort of half an id", "Abort", Bytes({0x0A, 0x05, 0x61}), "MALFORMED_REQUEST",
         "vllm.grpc.engine.AbortRequest");
  for (const int32_t rank : {1, -1}) {
    vllm_wire::GetLoadsRequest loads;
    loads.set_dp_rank(rank);
    expect(absl::StrCat("GetLoads of rank ", rank), "GetLoads", loads.SerializeAsString(),
           "INVALID_FIELD", "dp_rank");
  }
  expect("GetLoads that is cut off", "GetLoads", Bytes({0x08}), "MALFORMED_REQUEST",
         "vllm.grpc.engine.GetLoadsRequest");
  for (const char* method : {"Embed", "FlushCache", "StartProfile", "NoSuchMethod"}) {
    EXPECT_EQ(Send(method, "").code, StatusCode::UNIMPLEMENTED) << method;
  }
  EXPECT_EQ(Send("Generate", std::string(32 << 20, 'x')).code, StatusCode::RESOURCE_EXHAUSTED);
  ASSERT_NO_FATAL_FAILURE(ExpectServes());
  EXPECT_TRUE(table.IsInTheDocument());
}

}  // namespace
}  // namespace orcd::testing
