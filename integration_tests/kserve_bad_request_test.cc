// Malformed and hostile messages of the Open Inference Protocol. The worker refuses each with the
// right status and a message that says what to change, and goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "integration_tests/errors_table.h"
#include "integration_tests/infer_client.h"
#include "integration_tests/raw_call.h"
#include "integration_tests/worker_fixture.h"

namespace orcd::testing {
namespace {

using ::grpc::StatusCode;
using Request = inference::ModelInferRequest;
using Spoil = std::function<void(Request&)>;

struct BadRequest {
  std::string name;
  Spoil spoil;
  // Field of the expected violation.
  std::string field;
  StatusCode code = StatusCode::INVALID_ARGUMENT;
};

constexpr char kGoodSampling[] = R"({"max_tokens": 3})";

Request Good() { return InferRequest("Hello", kGoodSampling); }

// Replaces the sampling parameters.
Spoil Sampling(const std::string& json) {
  return
      [json](Request& r) { r.mutable_inputs(1)->mutable_contents()->set_bytes_contents(0, json); };
}

// Changes one input of the good request: 0 is the text, 1 the sampling parameters.
Spoil Input(int index, std::function<void(Request::InferInputTensor&)> spoil) {
  return [=](Request& r) { spoil(*r.mutable_inputs(index)); };
}

Spoil Shape(const std::vector<int64_t>& shape) {
  return Input(0, [shape](Request::InferInputTensor& input) {
    input.clear_shape();
    for (const int64_t size : shape) input.add_shape(size);
  });
}

// Makes the good request raw, with these bytes for its text.
Spoil RawText(const std::string& bytes) {
  return [bytes](Request& r) {
    r = Raw(r);
    r.set_raw_input_contents(0, bytes);
  };
}

// Adds another input to the good request.
Spoil Add(const std::string& name, const std::string& datatype,
          std::function<void(inference::InferTensorContents&)> fill) {
  return [=](Request& r) { fill(AddInput(r, name, datatype)); };
}

Spoil RawSwitch(const std::string& bytes) {
  return [bytes](Request& r) {
    AddBool(r, "exclude_input_in_output", true);
    r = Raw(r);
    r.set_raw_input_contents(2, bytes);
  };
}

Spoil Parameter(const std::string& name, std::function<void(inference::InferParameter&)> set) {
  return [=](Request& r) { set((*r.mutable_parameters())[name]); };
}

Spoil Output(const std::string& name) {
  return [name](Request& r) { r.add_outputs()->set_name(name); };
}

std::vector<BadRequest> BadTensors() {
  using Tensor = Request::InferInputTensor;
  const std::string many(2 << 20, 'x');
  return {
      {"no inputs", [](Request& r) { r.clear_inputs(); }, "inputs"},
      {"no text_input", [](Request& r) { r.mutable_inputs()->DeleteSubrange(0, 1); }, "inputs"},
      {"text_input twice", [](Request& r) { AddBytes(r, "text_input", "b"); }, "inputs[2].name"},
      {"input without a name", Input(0, [](Tensor& t) { t.clear_name(); }), "inputs[0].name"},
      {"unknown input", Add("temperature", "FP32", [](auto& c) { c.add_fp32_contents(1); }),
       "inputs[2].name"},
      {"input with a long name", Add(many, "BYTES", [](auto& c) { c.add_bytes_contents("x"); }),
       "inputs[2].name"},
      {"100000 inputs",
       [](Request& r) {
         for (int i = 0; i < 100'000; ++i) AddBool(r, "stream", false);
       },
       "inputs[3].name"},
      {"image", Add("image", "BYTES", [](auto& c) { c.add_bytes_contents("x"); }),
       "inputs[2].name"},
      {"embedding_request",
       Add("embedding_request", "BYTES", [](auto& c) { c.add_bytes_contents("{}"); }),
       "inputs[2].name"},
      {"return_logprobs", [](Request& r) { AddBool(r, "return_logprobs", true); },
       "inputs[2].name"},
      {"text_input of INT32", Input(0, [](Tensor& t) { t.set_datatype("INT32"); }),
       "inputs[0].datatype"},
      {"text_input of bytes", Input(0, [](Tensor& t) { t.set_datatype("bytes"); }),
       "inputs[0].datatype"},
      {"text_input without a datatype", Input(0, [](Tensor& t) { t.clear_datatype(); }),
       "inputs[0].datatype"},
      {"text_input of a long datatype", Input(0, [=](Tensor& t) { t.set_datatype(many); }),
       "inputs[0].datatype"},
      {"stream of BYTES", [](Request& r) { AddBytes(r, "stream", "\1"); }, "inputs[2].datatype"},
      {"stream of UINT8", Add("stream", "UINT8", [](auto& c) { c.add_uint_contents(1); }),
       "inputs[2].datatype"},
      {"no shape", Shape({}), "inputs[0].shape"},
      {"shape [0]", Shape({0}), "inputs[0].shape"},
      {"shape [2]", Shape({2}), "inputs[0].shape"},
      {"shape [-1]", Shape({-1}), "inputs[0].shape"},
      {"shape [1, 2]", Shape({1, 2}), "inputs[0].shape"},
      {"shape [1, 1, 1]", Shape({1, 1, 1}), "inputs[0].shape"},
      {"shape [2^63 - 1]", Shape({std::numeric_limits<int64_t>::max()}), "inputs[0].shape"},
      {"shape [-2^63]", Shape({std::numeric_limits<int64_t>::min()}), "inputs[0].shape"},
      {"shape [2^32 + 1]", Shape({(int64_t{1} << 32) + 1}), "inputs[0].shape"},
      {"shape of 100000 dimensions", Shape(std::vector<int64_t>(100'000, 1)), "inputs[0].shape"},
      {"no contents", Input(0, [](Tensor& t) { t.clear_contents(); }), "inputs[0].contents"},
      {"empty contents", Input(0, [](Tensor& t) { t.mutable_contents()->Clear(); }),
       "inputs[0].contents"},
      {"two texts", Input(0, [](Tensor& t) { t.mutable_contents()->add_bytes_contents("b"); }),
       "inputs[0].contents"},
      {"100000 texts",
       Input(0,
             [](Tensor& t) {
               for (int i = 0; i < 100'000; ++i) {
                 t.mutable_contents()->add_bytes_contents("b");
               }
             }),
       "inputs[0].contents"},
      {"text among integers",
       Input(0,
             [](Tensor& t) {
               t.mutable_contents()->Clear();
               t.mutable_contents()->add_int_contents(5);
             }),
       "inputs[0].contents"},
      {"text and integers",
       Input(0, [](Tensor& t) { t.mutable_contents()->add_int64_contents(5); }),
       "inputs[0].contents"},
      {"text and floats", Input(0, [](Tensor& t) { t.mutable_contents()->add_fp64_contents(5); }),
       "inputs[0].contents"},
      {"switch among integers", Add("stream", "BOOL", [](auto& c) { c.add_uint_contents(1); }),
       "inputs[2].contents"},
      {"switch without contents", Add("stream", "BOOL", [](auto&) {}), "inputs[2].contents"},
      {"two switches in one",
       Add("return_finish_reason", "BOOL",
           [](auto& c) {
             c.add_bool_contents(true);
             c.add_bool_contents(false);
           }),
       "inputs[2].contents"},
      {"text that is not UTF-8",
       Input(0, [](Tensor& t) { t.mutable_contents()->set_bytes_contents(0, "a\xC3\x28"); }),
       "text_input"},
      {"text that is cut within a character",
       Input(0, [](Tensor& t) { t.mutable_contents()->set_bytes_contents(0, "a\xE2\x82"); }),
       "text_input"},
      {"empty text", Input(0, [](Tensor& t) { t.mutable_contents()->set_bytes_contents(0, ""); }),
       "text_input"},
      {"text far over the context",
       Input(0,
             [](Tensor& t) {
               t.mutable_contents()->set_bytes_contents(0, std::string(1 << 20, '7'));
             }),
       "text_input"},
      {"text in shared memory",
       Input(0,
             [](Tensor& t) {
               (*t.mutable_parameters())["shared_memory_region"].set_string_param("r");
             }),
       "inputs[0].parameters"},
      {"raw size beside typed contents",
       Input(0,
             [](Tensor& t) { (*t.mutable_parameters())["binary_data_size"].set_int64_param(5); }),
       "inputs[0].parameters"},
      {"another raw size",
       [](Request& r) {
         r = Raw(r);
         (*r.mutable_inputs(0)->mutable_parameters())["binary_data_size"].set_int64_param(5);
       },
       "inputs[0].parameters"},
      {"raw size that is text",
       [](Request& r) {
         r = Raw(r);
         (*r.mutable_inputs(0)->mutable_parameters())["binary_data_size"].set_string_param("9");
       },
       "inputs[0].parameters"},
  };
}

std::vector<BadRequest> BadRaw() {
  const std::string five("\5\0\0\0", 4);
  return {
      {"raw and typed",
       [](Request& r) {
         const Request typed = r;
         r = Raw(r);
         *r.mutable_inputs() = typed.inputs();
       },
       "inputs[0].contents"},
      {"raw, and one typed",
       [](Request& r) {
         r = Raw(r);
         AddInput(r, "stream", "BOOL").add_bool_contents(false);
         r.add_raw_input_contents();
       },
       "inputs[2].contents"},
      {"fewer raw contents than inputs",
       [](Request& r) {
         r = Raw(r);
         r.mutable_raw_input_contents()->RemoveLast();
       },
       "raw_input_contents"},
      {"more raw contents than inputs",
       [](Request& r) {
         r = Raw(r);
         r.add_raw_input_contents("x");
       },
       "raw_input_contents"},
      {"raw contents without inputs",
       [](Request& r) {
         r = Raw(r);
         r.clear_inputs();
       },
       "raw_input_contents"},
      {"100000 raw contents",
       [](Request& r) {
         r = Raw(r);
         for (int i = 0; i < 100'000; ++i) r.add_raw_input_contents();
       },
       "raw_input_contents"},
      {"raw text without bytes", RawText(""), "raw_input_contents[0]"},
      {"raw text of three bytes", RawText(std::string(3, '\0')), "raw_input_contents[0]"},
      {"raw text without a length", RawText("Hello"), "raw_input_contents[0]"},
      {"raw text that is truncated", RawText(five + "Hell"), "raw_input_contents[0]"},
      {"raw text that goes on", RawText(five + "Hello, you"), "raw_input_contents[0]"},
      {"two raw texts", RawText(five + "Hello" + five + "Hello"), "raw_input_contents[0]"},
      {"raw text of 2^32 - 1 bytes", RawText("\xFF\xFF\xFF\xFFHello"), "raw_input_contents[0]"},
      {"raw text of 2^31 bytes", RawText(std::string("\0\0\0\x80", 4) + "Hello"),
       "raw_input_contents[0]"},
      {"raw text whose length is big-endian", RawText(std::string("\0\0\0\5", 4) + "Hello"),
       "raw_input_contents[0]"},
      {"raw text that is not UTF-8", RawText(std::string("\1\0\0\0", 4) + "\xFF"), "text_input"},
      {"raw text that is empty", RawText(std::string(4, '\0')), "text_input"},
      {"raw switch without bytes", RawSwitch(""), "raw_input_contents[2]"},
      {"raw switch of two bytes", RawSwitch("\1\1"), "raw_input_contents[2]"},
      {"raw switch of four bytes", RawSwitch(std::string("\1\0\0\0", 4)), "raw_input_contents[2]"},
      {"raw switch that is 2", RawSwitch("\2"), "raw_input_contents[2]"},
      {"raw switch that is 255", RawSwitch("\xFF"), "raw_input_contents[2]"},
  };
}

std::vector<BadRequest> BadSampling() {
  const std::string p = "sampling_parameters";
  const auto json = [](const std::string& name, const std::string& value) {
    return Sampling(absl::StrCat("{\"", name, "\": ", value, "}"));
  };
  std::vector<BadRequest> cases = {
      {"sampling parameters that are no JSON", Sampling("{temperature: 1}"), p},
      {"sampling parameters that are cut off", Sampling(R"({"temperature": 1)"), p},
      {"sampling parameters with a rest", Sampling("{} {}"), p},
      {"sampling parameters that are a list", Sampling("[1]"), p},
      {"sampling parameters that are not UTF-8", Sampling("{\"stop\": \"\xFF\"}"), p},
      {"sampling parameters with a NUL", Sampling(std::string("{}\0", 3)), p},
      {"a parameter twice", Sampling(R"({"seed": 1, "seed": 2})"), p},
      {"an id's bias twice", Sampling(R"({"logit_bias": {"5": 1, "5": 2}})"), p},
      {"100000 open lists", Sampling(R"({"stop": )" + std::string(100'000, '[')), p},
      {"number beyond all", json("temperature", "1e999"), p},
      {"NaN", json("temperature", "NaN"), p},
      {"schema that is a list", json("json_schema", "[1]"), p + ".json_schema"},
      {"two rules", Sampling(R"({"regex": "a", "choice": ["a"]})"), p + ".choice"},
      {"structured outputs that are no JSON", json("structured_outputs", R"("{")"),
       p + ".structured_outputs"},
      {"structured outputs with an unknown rule", json("structured_outputs", R"({"xml": "<a>"})"),
       p + ".structured_outputs"},
      {"response format of an unknown type", json("response_format", R"({"type": "xml"})"),
       p + ".response_format.type"},
      {"logprobs", json("logprobs", "1"), p},
      {"unknown parameter", json("temprature", "1"), p},
      {"unknown parameter without a name", json("", "1"), p},
  };
  const struct {
    const char* name;
    std::vector<const char*> values;
  } wrong[] = {
      {"temperature", {"-0.1", "100.5", "1e300", "\"hot\"", "true", "[1]", "{}", "\"nan\""}},
      {"top_p", {"0", "1.5", "-1"}},
      {"min_p", {"-0.5", "2"}},
      {"top_k", {"-2", "1.5", "4294967296", "\"many\""}},
      {"repetition_penalty", {"0", "101"}},
      {"frequency_penalty", {"-101"}},
      {"presence_penalty", {"101"}},
      {"max_tokens", {"0", "-1", "0.5", "4294967296", "\"x\""}},
      {"min_tokens", {"-1", "4294967296"}},
      {"seed", {"-0.5", "0.5", "18446744073709551616", "true"}},
      {"n", {"0", "2", "-1"}},
      {"best_of", {"4"}},
      {"ignore_eos", {"1", "\"maybe\""}},
      {"stop", {"5", "[\"\"]", "[\"a\", null]", "{\"a\": 1}"}},
      {"stop_token_ids", {"[-1]", "[99999999]", "[\"x\"]"}},
      {"logit_bias", {"[1]", "{\"x\": 1}", "{\"-1\": 1}", "{\"5\": 1001}", "{\"99999999\": 1}"}},
      {"skip_special_tokens", {"1"}},
      {"speculation", {"2", "\"maybe\""}},
      {"include_stop_str_in_output", {"true"}},
      {"use_beam_search", {"true"}},
      {"early_stopping", {"true", "\"never\""}},
      {"length_penalty", {"0.5"}},
      {"bad_words", {"[\"x\"]"}},
      {"lora_name", {"\"x\""}},
  };
  for (const auto& [name, values] : wrong) {
    for (const char* value : values) {
      cases.push_back({absl::StrCat(name, " ", value), json(name, value), p + "." + name});
    }
  }
  std::string stops;
  for (int i = 0; i < 17; ++i) absl::StrAppend(&stops, i > 0 ? ", " : "", "\"stop", i, "\"");
  cases.push_back({"17 stop strings", json("stop", "[" + stops + "]"), p + ".stop"});
  cases.push_back({"min_tokens over max_tokens", Sampling(R"({"max_tokens": 3, "min_tokens": 4})"),
                   p + ".min_tokens"});
  cases.push_back({"stop string of 257 bytes", json("stop", "\"" + std::string(257, 'x') + "\""),
                   p + ".stop[0]"});
  return cases;
}

std::vector<BadRequest> BadRest() {
  const std::string final_parameter = "triton_enable_empty_final_response";
  return {
      {"no model", [](Request& r) { r.clear_model_name(); }, "model_name"},
      {"unknown model", [](Request& r) { r.set_model_name("gpt-5"); }, "", StatusCode::NOT_FOUND},
      {"model with a long name", [](Request& r) { r.set_model_name(std::string(1 << 20, 'x')); },
       "", StatusCode::NOT_FOUND},
      {"unknown version", [](Request& r) { r.set_model_version("2"); }, "", StatusCode::NOT_FOUND},
      {"version that is no number", [](Request& r) { r.set_model_version("latest"); }, "",
       StatusCode::NOT_FOUND},
      {"id of 257 bytes", [](Request& r) { r.set_id(std::string(257, 'x')); }, "id"},
      {"id of a megabyte", [](Request& r) { r.set_id(std::string(1 << 20, 'x')); }, "id"},
      {"unknown output", Output("logits"), "outputs[0].name"},
      {"output without a name", Output(""), "outputs[0].name"},
      {"output with a long name", Output(std::string(1 << 20, 'x')), "outputs[0].name"},
      {"output twice",
       [](Request& r) {
         Output("text_output")(r);
         Output("text_output")(r);
       },
       "outputs[1].name"},
      {"100000 outputs",
       [](Request& r) {
         for (int i = 0; i < 100'000; ++i) Output("token_ids")(r);
       },
       "outputs[1].name"},
      {"output by classification",
       [](Request& r) {
         Output("text_output")(r);
         (*r.mutable_outputs(0)->mutable_parameters())["classification"].set_int64_param(3);
       },
       "outputs[0].parameters"},
      {"output in shared memory",
       [](Request& r) {
         Output("text_output")(r);
         (*r.mutable_outputs(0)->mutable_parameters())["shared_memory_region"].set_string_param(
             "r");
       },
       "outputs[0].parameters"},
      {"one answer that streams", [](Request& r) { AddBool(r, "stream", true); }, "stream"},
      {"stream that has the text before it",
       [](Request& r) {
         AddBool(r, "stream", true);
         AddBool(r, "exclude_input_in_output", false);
       },
       "exclude_input_in_output"},
      {"empty last answer of one",
       Parameter(final_parameter, [](auto& v) { v.set_bool_param(true); }),
       "parameters." + final_parameter},
      {"empty last answer that is text",
       Parameter(final_parameter, [](auto& v) { v.set_string_param("true"); }),
       "parameters." + final_parameter},
      {"sequence", Parameter("sequence_id", [](auto& v) { v.set_int64_param(1); }), "parameters"},
      {"priority", Parameter("priority", [](auto& v) { v.set_uint64_param(1); }), "parameters"},
      {"unknown request parameter", Parameter("fast", [](auto& v) { v.set_bool_param(true); }),
       "parameters"},
      {"request parameter with a long name",
       Parameter(std::string(1 << 20, 'x'), [](auto& v) { v.set_bool_param(true); }), "parameters"},
      {"parameter here and there", Parameter("max_tokens", [](auto& v) { v.set_int64_param(3); }),
       "parameters"},
      {"temperature -1 as a parameter",
       Parameter("temperature", [](auto& v) { v.set_double_param(-1); }),
       "sampling_parameters.temperature"},
      {"temperature that is NaN as a parameter",
       Parameter("temperature",
                 [](auto& v) { v.set_double_param(std::numeric_limits<double>::quiet_NaN()); }),
       "sampling_parameters.temperature"},
      {"temperature that is infinite as a parameter",
       Parameter("temperature",
                 [](auto& v) { v.set_double_param(std::numeric_limits<double>::infinity()); }),
       "sampling_parameters.temperature"},
      {"seed 0.5 as a parameter", Parameter("seed", [](auto& v) { v.set_double_param(0.5); }),
       "parameters.seed"},
      {"top_k that is NaN as a parameter",
       Parameter("top_k",
                 [](auto& v) { v.set_double_param(std::numeric_limits<double>::quiet_NaN()); }),
       "parameters.top_k"},
      {"negative timeout", Parameter("timeout", [](auto& v) { v.set_int64_param(-1); }),
       "parameters.timeout"},
      {"timeout that is text", Parameter("timeout", [](auto& v) { v.set_string_param("1"); }),
       "parameters.timeout"},
      {"timeout without a value", Parameter("timeout", [](auto&) {}), "parameters.timeout"},
  };
}

class KserveBadRequestTest : public WorkerTest {
 protected:
  void SetUp() override {
    WorkerTest::SetUp();
    ASSERT_NO_FATAL_FAILURE(StartLoaded({"--max-context", "2048"}));
    kserve_ = inference::GRPCInferenceService::NewStub(client().channel());
  }
  void TearDown() override {
    kserve_ = nullptr;
    WorkerTest::TearDown();
  }

  void ExpectServes() { ASSERT_TRUE(Infer(*kserve_, Good()).error.ok()); }

  RpcError SendRaw(const std::string& method, const std::string& bytes) {
    return testing::SendRaw(client().channel(), "/inference.GRPCInferenceService/" + method, bytes);
  }

  std::unique_ptr<inference::GRPCInferenceService::Stub> kserve_;
};

TEST_F(KserveBadRequestTest, EachIsRefusedAndTheWorkerGoesOn) {
  std::vector<BadRequest> cases;
  for (const auto& more : {BadTensors(), BadRaw(), BadSampling(), BadRest()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  EXPECT_GE(cases.size(), 150u);
  ErrorsTable table("Bad inference requests");
  InferStream stream(*kserve_);
  for (size_t i = 0; i < cases.size(); ++i) {
    const BadRequest& bad = cases[i];
    SCOPED_TRACE(bad.name);
    Request request = Good();
    bad.spoil(request);
    const Inference one = Infer(*kserve_, request);
    EXPECT_TRUE(IsError(one.error, bad.code));
    if (!bad.field.empty()) {
      const bool named =
          std::any_of(one.error.fields.begin(), one.error.fields.end(),
                      [&](const std::string& field) { return field.starts_with(bad.field); });
      EXPECT_TRUE(named) << one.error;
    }
    EXPECT_GE(one.error.message.size(), 15u) << "says too little";
    table.Add(bad.name, one.error);

    // Sends the same on a stream, which goes on. Rules for single answers do not apply there.
    if (one.error.fields == std::vector<std::string>{"stream"} ||
        bad.name == "empty last answer of one") {
      continue;
    }
    const bool has_id = request.id().size() > 256;
    const std::string id = has_id ? std::string() : absl::StrCat("r", i);
    if (!has_id) request.set_id(id);
    ASSERT_TRUE(stream.Send(request));
    stream.by_id().erase(id);
    ASSERT_TRUE(stream.ReadUntilEnd(id));
    EXPECT_EQ(stream.by_id()[id].error.code, bad.code);
    EXPECT_EQ(stream.by_id()[id].error.reason, one.error.reason);
    const std::string& message = stream.by_id()[id].error.message;
    EXPECT_EQ(message.substr(message.find(": ") + 2), one.error.message);
    EXPECT_EQ(stream.by_id()[id].violation, "");
    if (i % 10 != 0) continue;
    ASSERT_NO_FATAL_FAILURE(ExpectServes());
  }
  Request good = Good();
  good.set_id("good");
  ASSERT_TRUE(stream.Send(good));
  ASSERT_TRUE(stream.ReadUntilEnd("good"));
  EXPECT_TRUE(stream.by_id()["good"].error.ok());
  stream.CloseRequests();
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_TRUE(client().WaitForQuiet());
  EXPECT_TRUE(table.IsInTheDocument());
}

TEST_F(KserveBadRequestTest, BoundsAreAllowed) {
  const std::vector<Spoil> fine = {
      [](Request& r) { r = Raw(r); },
      Shape({1, 1}),
      Sampling(R"({"temperature": 0, "max_tokens": 3})"),
      Sampling(R"({"temperature": "0.5", "top_k": -1, "seed": -1, "max_tokens": "3"})"),
      Sampling(R"({"seed": 18446744073709551615, "max_tokens": 3, "n": 1, "best_of": null})"),
      Sampling(R"({"top_k": 4294967295, "max_tokens": 3})"),
      Sampling(R"({"max_tokens": 3, "logprobs": null, "guided_json": null, "stop": null,
                   "use_beam_search": false, "early_stopping": false, "length_penalty": 1.0,
                   "best_of": 1, "seed": -7, "bad_words": [], "logit_bias": {"5": null}})"),
      Parameter("seed", [](auto&) {}),
      Parameter("logprobs", [](auto&) {}),
      Sampling(R"({"stop": ["a", "b"], "stop_token_ids": [1, 2], "max_tokens": 3})"),
      Sampling(R"({"logit_bias": {"5": -1000, "6": 1000}, "max_tokens": 3})"),
      [](Request& r) { r.set_id(std::string(256, 'x')); },
      [](Request& r) { r.set_id("not an \"id\" of ours\n"); },
      [](Request& r) { r.set_model_version("1"); },
      Parameter("temperature", [](auto& v) { v.set_double_param(0.5); }),
      Parameter("timeout", [](auto& v) { v.set_int64_param(0); }),
      Parameter("triton_enable_empty_final_response", [](auto& v) { v.set_bool_param(false); }),
      [](Request& r) {
        r = Raw(r);
        (*r.mutable_inputs(0)->mutable_parameters())["binary_data_size"].set_int64_param(9);
      },
      Input(0,
            [](auto& t) { t.mutable_contents()->set_bytes_contents(0, std::string("a\0b", 3)); }),
      [](Request& r) {
        for (const char* name : {"text_output", "finish_reason", "token_ids", "num_input_tokens",
                                 "num_output_tokens"}) {
          Output(name)(r);
        }
      },
  };
  for (size_t i = 0; i < fine.size(); ++i) {
    Request request = Good();
    fine[i](request);
    const Inference one = Infer(*kserve_, request);
    EXPECT_TRUE(one.error.ok()) << "case " << i << ": " << one.error;
    EXPECT_EQ(one.violation, "") << "case " << i;
  }
}

TEST_F(KserveBadRequestTest, BytesThatAreNoMessageAreRefused) {
  const std::string truncated("\x0A\x7F\x0A", 3);
  const std::string bad_wire_type("\x0F\x0F\x0F", 3);
  // Field 1 (a name), not UTF-8.
  const std::string invalid_name("\x0A\x01\xFF", 3);
  const std::string huge_length("\x0A\xFF\xFF\xFF\xFF\x07", 6);
  const std::string endless_varint(64, '\xFF');
  for (const char* method : {"ServerLive", "ServerReady", "ModelReady", "ServerMetadata",
                             "ModelMetadata", "ModelInfer", "ModelStreamInfer", "ModelConfig",
                             "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"}) {
    SCOPED_TRACE(method);
    for (const std::string& bytes : {truncated, bad_wire_type, huge_length, endless_varint}) {
      EXPECT_TRUE(
          IsError(SendRaw(method, bytes), StatusCode::INVALID_ARGUMENT, "MALFORMED_REQUEST"));
    }
    // The messages of these methods have no names.
    if (std::string(method).starts_with("Server")) continue;
    EXPECT_TRUE(
        IsError(SendRaw(method, invalid_name), StatusCode::INVALID_ARGUMENT, "MALFORMED_REQUEST"));
  }
  EXPECT_EQ(SendRaw("ModelStatistics", "").code, StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(SendRaw("SystemSharedMemoryRegister", "").code, StatusCode::UNIMPLEMENTED);
  // Protobuf ignores a field that no version of the protocol has.
  EXPECT_TRUE(SendRaw("ServerLive", std::string("\xF8\x7F\x01", 3)).ok());
  ASSERT_NO_FATAL_FAILURE(ExpectServes());
}

TEST_F(KserveBadRequestTest, OtherCallsCheckTheirArgumentsToo) {
  ErrorsTable table("Bad calls of the inference protocol");
  const auto expect = [&](const std::string& call, RpcError error, StatusCode code,
                          const std::string& reason, const std::string& field = "") {
    SCOPED_TRACE(call);
    EXPECT_TRUE(IsError(error, code, reason, field));
    error.message = absl::StrReplaceAll(error.message, {{models().path().string(), "models"}});
    table.Add(call, error);
  };
  const auto ready = [&](const std::string& name, const std::string& version) {
    grpc::ClientContext context;
    inference::ModelReadyRequest request;
    request.set_name(name);
    request.set_version(version);
    inference::ModelReadyResponse response;
    return DecodeError(kserve_->ModelReady(&context, request, &response));
  };
  expect("ModelReady of an unknown model", ready("gpt-5", ""), StatusCode::NOT_FOUND,
         "MODEL_NOT_FOUND");
  expect("ModelReady of no model", ready("", ""), StatusCode::NOT_FOUND, "MODEL_NOT_FOUND");
  expect("ModelReady of an unknown version", ready("nano", "7"), StatusCode::NOT_FOUND,
         "MODEL_NOT_FOUND");
  const auto metadata = [&](const std::string& name, const std::string& version) {
    grpc::ClientContext context;
    inference::ModelMetadataRequest request;
    request.set_name(name);
    request.set_version(version);
    inference::ModelMetadataResponse response;
    return DecodeError(kserve_->ModelMetadata(&context, request, &response));
  };
  expect("ModelMetadata of an unknown model", metadata("gpt-5", ""), StatusCode::NOT_FOUND,
         "MODEL_NOT_FOUND");
  expect("ModelMetadata of no model", metadata("", ""), StatusCode::INVALID_ARGUMENT,
         "INVALID_FIELD", "name");
  expect("ModelMetadata of an unknown version", metadata("nano", "0"), StatusCode::NOT_FOUND,
         "MODEL_NOT_FOUND");
  const auto config = [&](const std::string& name) {
    grpc::ClientContext context;
    inference::ModelConfigRequest request;
    request.set_name(name);
    inference::ModelConfigResponse response;
    return DecodeError(kserve_->ModelConfig(&context, request, &response));
  };
  expect("ModelConfig of an unknown model", config("gpt-5"), StatusCode::NOT_FOUND,
         "MODEL_NOT_FOUND");
  const auto index = [&](const std::string& repository) {
    grpc::ClientContext context;
    inference::RepositoryIndexRequest request;
    request.set_repository_name(repository);
    inference::RepositoryIndexResponse response;
    return DecodeError(kserve_->RepositoryIndex(&context, request, &response));
  };
  expect("RepositoryIndex of another repository", index("s3"), StatusCode::INVALID_ARGUMENT,
         "INVALID_FIELD", "repository_name");
  const auto load = [&](const std::function<void(inference::RepositoryModelLoadRequest&)>& spoil) {
    grpc::ClientContext context;
    inference::RepositoryModelLoadRequest request;
    request.set_model_name("other");
    spoil(request);
    inference::RepositoryModelLoadResponse response;
    return DecodeError(kserve_->RepositoryModelLoad(&context, request, &response));
  };
  using Load = inference::RepositoryModelLoadRequest;
  expect("RepositoryModelLoad of no model", load([](Load& r) { r.clear_model_name(); }),
         StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "model_name");
  expect("RepositoryModelLoad of another repository",
         load([](Load& r) { r.set_repository_name("s3"); }), StatusCode::INVALID_ARGUMENT,
         "INVALID_FIELD", "repository_name");
  expect("RepositoryModelLoad of a file that is not there", load([](Load&) {}),
         StatusCode::NOT_FOUND, "MODEL_NOT_FOUND");
  for (const char* name : {"../nano", "/etc/passwd"}) {
    expect(absl::StrCat("RepositoryModelLoad of ", name),
           load([&](Load& r) { r.set_model_name(name); }), StatusCode::INVALID_ARGUMENT,
           "MODEL_PATH_NOT_ALLOWED");
  }
  expect("RepositoryModelLoad with a configuration",
         load([](Load& r) { (*r.mutable_parameters())["config"].set_string_param("{}"); }),
         StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "parameters");
  expect("RepositoryModelLoad with a file", load([](Load& r) {
           (*r.mutable_parameters())["file:1/model.gguf"].set_bytes_param("GGUF");
         }),
         StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "parameters");
  expect("RepositoryModelLoad with a replace that is text",
         load([](Load& r) { (*r.mutable_parameters())["replace"].set_string_param("true"); }),
         StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "parameters.replace");
  expect("RepositoryModelLoad with a sum of 63 digits", load([](Load& r) {
           (*r.mutable_parameters())["sha256"].set_string_param(std::string(63, 'a'));
         }),
         StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "parameters.sha256");
  const auto unload =
      [&](const std::function<void(inference::RepositoryModelUnloadRequest&)>& spoil) {
        grpc::ClientContext context;
        inference::RepositoryModelUnloadRequest request;
        request.set_model_name("nano");
        spoil(request);
        inference::RepositoryModelUnloadResponse response;
        return DecodeError(kserve_->RepositoryModelUnload(&context, request, &response));
      };
  using Unload = inference::RepositoryModelUnloadRequest;
  expect("RepositoryModelUnload of no model", unload([](Unload& r) { r.clear_model_name(); }),
         StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "model_name");
  expect("RepositoryModelUnload of an unknown model",
         unload([](Unload& r) { r.set_model_name("gpt-5"); }), StatusCode::NOT_FOUND,
         "MODEL_NOT_FOUND");
  expect("RepositoryModelUnload with an unknown parameter",
         unload([](Unload& r) { (*r.mutable_parameters())["now"].set_bool_param(true); }),
         StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "parameters");
  expect("RepositoryModelUnload with a force that is a number",
         unload([](Unload& r) { (*r.mutable_parameters())["force"].set_int64_param(1); }),
         StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "parameters.force");
  expect("ModelInfer of bytes that are no message", SendRaw("ModelInfer", "\x0A\x7F\x0A"),
         StatusCode::INVALID_ARGUMENT, "MALFORMED_REQUEST");
  EXPECT_TRUE(table.IsInTheDocument());
  ASSERT_NO_FATAL_FAILURE(ExpectServes());
}

}  // namespace
}  // namespace orcd::testing
