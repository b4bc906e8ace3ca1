#include "worker/api/kserve/tensors.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "worker/api/kserve/infer_request_for_test.h"

namespace orcd::kserve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The field that is refused. Empty if none is.
std::string RefusedField(const inference::ModelInferRequest& request) {
  const auto inputs = ReadInputs(request);
  if (inputs.ok()) return "";
  EXPECT_EQ(inputs.status().code(), absl::StatusCode::kInvalidArgument);
  return GetErrorDetails(inputs.status()).field;
}

TEST(TensorsTest, TypedAndRawSayTheSame) {
  inference::ModelInferRequest typed = InferRequest("Hä?", "{\"seed\": 1}");
  AddBool(typed, "stream", true);
  AddBool(typed, "return_finish_reason", true);
  for (const auto& request : {typed, Raw(typed)}) {
    const auto inputs = ReadInputs(request);
    ASSERT_TRUE(inputs.ok()) << inputs.status();
    EXPECT_EQ(inputs->text, "Hä?");
    EXPECT_EQ(inputs->sampling_parameters, "{\"seed\": 1}");
    EXPECT_TRUE(inputs->stream);
    EXPECT_TRUE(inputs->return_finish_reason);
    EXPECT_FALSE(inputs->return_input_tokens);
    EXPECT_EQ(inputs->raw, request.raw_input_contents_size() > 0);
  }
}

// As in Triton's vLLM backend.
TEST(TensorsTest, TheTextComesBackUnlessItIsAStreamOrExcluded) {
  EXPECT_TRUE(ReadInputs(InferRequest("a"))->echo_text);
  inference::ModelInferRequest stream = InferRequest("a");
  AddBool(stream, "stream", true);
  EXPECT_FALSE(ReadInputs(stream)->echo_text);
  AddBool(stream, "exclude_input_in_output", false);
  EXPECT_EQ(RefusedField(stream), "exclude_input_in_output");
  inference::ModelInferRequest excluded = InferRequest("a");
  AddBool(excluded, "exclude_input_in_output", true);
  EXPECT_FALSE(ReadInputs(excluded)->echo_text);
}

TEST(TensorsTest, AShapeIsOneOrOneByOne) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{1}, {1, 1}, {}, {0}, {2}, {-1}, {1, 2}, {1, 1, 1}, {INT64_MIN}}) {
    inference::ModelInferRequest request = InferRequest("a");
    request.mutable_inputs(0)->clear_shape();
    for (const int64_t size : shape) request.mutable_inputs(0)->add_shape(size);
    const bool fine = shape == std::vector<int64_t>{1} || shape == std::vector<int64_t>{1, 1};
    EXPECT_EQ(RefusedField(request), fine ? "" : "inputs[0].shape");
  }
}

TEST(TensorsTest, RawBytesMustBeOneWholeElement) {
  for (const std::string& raw : {std::string(), std::string("\0\0\0", 3),
                                 std::string("\2\0\0\0a", 5), std::string("\0\0\0\0a", 5),
                                 std::string("\xff\xff\xff\xff"), std::string("\1\0\0\0ab", 6)}) {
    inference::ModelInferRequest request = Raw(InferRequest("a"));
    request.set_raw_input_contents(0, raw);
    EXPECT_EQ(RefusedField(request), "raw_input_contents[0]") << raw.size();
  }
  inference::ModelInferRequest empty = Raw(InferRequest("a"));
  empty.set_raw_input_contents(0, std::string(4, '\0'));
  EXPECT_EQ(RefusedField(empty), "");
}

TEST(TensorsTest, RawBoolIsOneByte) {
  for (const std::string& raw : {std::string(), std::string("\2"), std::string("\1\1")}) {
    inference::ModelInferRequest request = InferRequest("a");
    AddBool(request, "stream", true);
    request = Raw(request);
    request.set_raw_input_contents(1, raw);
    EXPECT_EQ(RefusedField(request), "raw_input_contents[1]");
  }
}

TEST(TensorsTest, RawAndTypedTogetherAreRefused) {
  inference::ModelInferRequest request = Raw(InferRequest("a"));
  request.mutable_inputs(0)->mutable_contents()->add_bytes_contents("a");
  EXPECT_EQ(RefusedField(request), "inputs[0].contents");
  request = InferRequest("a", "{}");
  request.add_raw_input_contents("\1\0\0\0a");
  EXPECT_EQ(RefusedField(request), "raw_input_contents");
}

TEST(TensorsTest, ElementsMustBeInTheListOfTheirType) {
  inference::ModelInferRequest request = InferRequest("a");
  request.mutable_inputs(0)->mutable_contents()->add_int_contents(1);
  EXPECT_EQ(RefusedField(request), "inputs[0].contents");
  request.mutable_inputs(0)->mutable_contents()->clear_bytes_contents();
  EXPECT_EQ(RefusedField(request), "inputs[0].contents");
  request.mutable_inputs(0)->clear_contents();
  EXPECT_EQ(RefusedField(request), "inputs[0].contents");
}

TEST(TensorsTest, InputsAreKnownAndComeOnce) {
  inference::ModelInferRequest request = InferRequest("a");
  AddBytes(request, "image", "x");
  EXPECT_EQ(RefusedField(request), "inputs[1].name");
  request = InferRequest("a");
  AddBytes(request, "text_input", "b");
  EXPECT_EQ(RefusedField(request), "inputs[1].name");
  request = InferRequest("a");
  AddInput(request, "stream", "INT32").add_int_contents(1);
  EXPECT_EQ(RefusedField(request), "inputs[1].datatype");
  EXPECT_EQ(RefusedField(inference::ModelInferRequest()), "inputs");
  EXPECT_EQ(RefusedField(InferRequest("\xff")), "text_input");
}

// KServe's client sends the number of its raw bytes in this parameter.
TEST(TensorsTest, TheRawSizeIsTheOnlyParameterOfAnInput) {
  inference::ModelInferRequest request = Raw(InferRequest("abc"));
  auto& parameters = *request.mutable_inputs(0)->mutable_parameters();
  parameters["binary_data_size"].set_int64_param(7);
  EXPECT_EQ(RefusedField(request), "");
  parameters["binary_data_size"].set_int64_param(8);
  EXPECT_EQ(RefusedField(request), "inputs[0].parameters");
  parameters.clear();
  parameters["shared_memory_region"].set_string_param("r");
  EXPECT_EQ(RefusedField(request), "inputs[0].parameters");
}

TEST(TensorsTest, NamesFromOutsideAreShort) {
  EXPECT_EQ(Quoted("a"), "'a'");
  EXPECT_LT(Quoted(std::string(1000, 'x')).size(), 80u);
  EXPECT_THAT(Quoted("\xff"), HasSubstr("\xEF\xBF\xBD"));
}

TEST(TensorsTest, OutputsAreTypedOrRaw) {
  const std::vector<int32_t> ids = {1, 258};
  inference::ModelInferResponse typed;
  OutputWriter typed_writer(typed, /*raw=*/false);
  typed_writer.AddBytes(kTextOutput, "ab");
  typed_writer.AddUint32(kInputTokens, 7);
  typed_writer.AddInt32s(kTokenIds, ids);
  EXPECT_EQ(typed.outputs(0).datatype(), "BYTES");
  EXPECT_THAT(typed.outputs(0).shape(), ElementsAre(1));
  EXPECT_EQ(typed.outputs(0).contents().bytes_contents(0), "ab");
  EXPECT_EQ(typed.outputs(1).contents().uint_contents(0), 7u);
  EXPECT_THAT(typed.outputs(2).shape(), ElementsAre(2));
  EXPECT_THAT(typed.outputs(2).contents().int_contents(), ElementsAre(1, 258));
  EXPECT_EQ(typed.raw_output_contents_size(), 0);

  inference::ModelInferResponse raw;
  OutputWriter raw_writer(raw, /*raw=*/true);
  raw_writer.AddBytes(kTextOutput, "ab");
  raw_writer.AddInt32s(kTokenIds, ids);
  EXPECT_FALSE(raw.outputs(0).has_contents());
  EXPECT_THAT(raw.raw_output_contents(),
              ElementsAre(std::string("\2\0\0\0ab", 6), std::string("\1\0\0\0\2\1\0\0", 8)));
}

}  // namespace
}  // namespace orcd::kserve
