#include "runtime/sampling/params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <ostream>
#include <string>

#include "runtime/base/error.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;

constexpr int kVocab = 1000;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(SamplingParamsTest, DefaultsAreValid) { EXPECT_TRUE(SamplingParams{}.Validate(kVocab).ok()); }

TEST(SamplingParamsTest, EndsOfEveryRangeAreValid) {
  SamplingParams low;
  low.temperature = 0;
  low.top_p = std::numeric_limits<float>::denorm_min();
  low.typical_p = std::numeric_limits<float>::denorm_min();
  low.repetition_penalty = std::numeric_limits<float>::denorm_min();
  low.frequency_penalty = -100;
  low.presence_penalty = -100;
  low.logit_bias = {{0, -1000.0f}};
  low.logprobs = 0;
  EXPECT_TRUE(low.Validate(kVocab).ok()) << low.Validate(kVocab);

  SamplingParams high;
  high.temperature = 100;
  high.top_k = std::numeric_limits<int32_t>::max();
  high.min_p = 1;
  high.repetition_penalty = 100;
  high.frequency_penalty = 100;
  high.presence_penalty = 100;
  for (int i = 0; i < kMaxLogitBiases; ++i) high.logit_bias.emplace_back(i, 1000.0f);
  high.logprobs = 20;
  EXPECT_TRUE(high.Validate(kMaxLogitBiases).ok()) << high.Validate(kMaxLogitBiases);
}

struct Refusal {
  std::string name;
  std::function<void(SamplingParams&)> change;
  std::string field;
  // Parts of the message: the value and the range.
  std::string value;
  std::string range;
};

void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }

class SamplingParamsRefusalTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(SamplingParamsRefusalTest, NamesFieldValueAndRange) {
  SamplingParams params;
  GetParam().change(params);
  const absl::Status status = params.Validate(kVocab);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetails(status).field, GetParam().field);
  EXPECT_EQ(GetErrorDetails(status).reason, "INVALID_FIELD");
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().field + ": "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().value));
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().range));
}

std::vector<Refusal> Refusals() {
  std::vector<Refusal> refusals;
  const auto add_float = [&](std::string name, float SamplingParams::*member, std::string range,
                             std::vector<float> values) {
    values.insert(values.end(), {kNan, kInfinity, -kInfinity});
    for (size_t i = 0; i < values.size(); ++i) {
      const float value = values[i];
      std::string text = std::isnan(value) ? "nan" : std::isinf(value) ? "inf" : "";
      refusals.push_back({name + "_" + std::to_string(i),
                          [=](SamplingParams& params) { params.*member = value; },
                          "sampling." + name, text, range});
    }
  };
  const float above_one = std::nextafter(1.0f, 2.0f);
  const float below_zero = -std::numeric_limits<float>::denorm_min();
  const float above_hundred = std::nextafter(100.0f, 200.0f);
  add_float("temperature", &SamplingParams::temperature, "[0, 100]", {below_zero, above_hundred});
  add_float("top_p", &SamplingParams::top_p, "(0, 1]", {0, -0.0f, below_zero, above_one});
  add_float("min_p", &SamplingParams::min_p, "[0, 1]", {below_zero, above_one});
  add_float("typical_p", &SamplingParams::typical_p, "(0, 1]", {0, below_zero, above_one});
  add_float("repetition_penalty", &SamplingParams::repetition_penalty, "(0, 100]",
            {0, -1, above_hundred});
  add_float("frequency_penalty", &SamplingParams::frequency_penalty, "[-100, 100]",
            {-above_hundred, above_hundred});
  add_float("presence_penalty", &SamplingParams::presence_penalty, "[-100, 100]",
            {-above_hundred, above_hundred});

  const auto add = [&](std::string name, std::function<void(SamplingParams&)> change,
                       std::string field, std::string value, std::string range) {
    refusals.push_back({name, std::move(change), field, value, range});
  };
  add(
      "top_k", [](SamplingParams& p) { p.top_k = -3; }, "sampling.top_k", "-3", "0 keeps every");
  add(
      "temperature_value", [](SamplingParams& p) { p.temperature = 100.5f; },
      "sampling.temperature", "100.5", "[0, 100]");
  add(
      "bias_unknown_id",
      [](SamplingParams& p) {
        p.logit_bias = {{3, 1.0f}, {1000, 1.0f}};
      },
      "sampling.logit_bias[1000]", "no token 1000", "0 to 999");
  add(
      "bias_negative_id",
      [](SamplingParams& p) {
        p.logit_bias = {{-1, 1.0f}};
      },
      "sampling.logit_bias[4294967295]", "no token 4294967295", "0 to 999");
  add(
      "bias_nan",
      [](SamplingParams& p) {
        p.logit_bias = {{3, kNan}};
      },
      "sampling.logit_bias[3]", "nan", "[-1000, 1000]");
  add(
      "bias_infinite",
      [](SamplingParams& p) {
        p.logit_bias = {{3, -kInfinity}};
      },
      "sampling.logit_bias[3]", "-inf", "[-1000, 1000]");
  add(
      "bias_above",
      [](SamplingParams& p) {
        p.logit_bias = {{2, 0.0f}, {3, 1000.5f}};
      },
      "sampling.logit_bias[3]", "1000.5", "[-1000, 1000]");
  add(
      "bias_twice",
      [](SamplingParams& p) {
        p.logit_bias = {{3, 1.0f}, {3, 2.0f}};
      },
      "sampling.logit_bias[3]", "token 3", "ascending");
  add(
      "bias_too_many", [](SamplingParams& p) { p.logit_bias.resize(kMaxLogitBiases + 1); },
      "sampling.logit_bias", "1025", "at most 1024");
  add(
      "logprobs_above", [](SamplingParams& p) { p.logprobs = 21; }, "logprobs", "21", "[0, 20]");
  add(
      "logprobs_below", [](SamplingParams& p) { p.logprobs = -2; }, "logprobs", "-2", "[0, 20]");
  return refusals;
}

INSTANTIATE_TEST_SUITE_P(All, SamplingParamsRefusalTest, ::testing::ValuesIn(Refusals()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace orcd
