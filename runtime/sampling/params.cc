#include "runtime/sampling/params.h"

#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

// A range of numbers; `low` is excluded if low_open. Contains no NaN.
struct Range {
  float low;
  float high;
  bool low_open = false;

  bool Contains(float value) const {
    return (low_open ? value > low : value >= low) && value <= high;
  }
  std::string ToString() const { return absl::StrCat(low_open ? "(" : "[", low, ", ", high, "]"); }
};

absl::Status CheckRange(std::string_view field, float value, const Range& range,
                        std::string_view meaning) {
  if (range.Contains(value)) return absl::OkStatus();
  return InvalidField(
      field, absl::StrCat(value, " is outside ", range.ToString(), "; ", std::string(meaning)));
}

}  // namespace

float SamplingParams::min_p_distance() const {
  if (min_p <= 0) return -std::numeric_limits<float>::infinity();
  return static_cast<float>(std::log(static_cast<double>(min_p)) *
                            static_cast<double>(filter_temperature()));
}

absl::Status SamplingParams::Validate(int vocab, const char* prefix) const {
  const auto name = [prefix](const char* field) { return absl::StrCat(prefix, field); };
  ORCD_RETURN_IF_ERROR(CheckRange(name("temperature"), temperature, {0, 100},
                                  "0 is greedy, 1 leaves the distribution as it is"));
  if (top_k < 0) {
    return InvalidField(
        name("top_k"), absl::StrCat(top_k, " is negative; 0 keeps every token, k the k likeliest"));
  }
  ORCD_RETURN_IF_ERROR(
      CheckRange(name("top_p"), top_p, {0, 1, /*low_open=*/true}, "1 keeps every token"));
  ORCD_RETURN_IF_ERROR(CheckRange(name("min_p"), min_p, {0, 1}, "0 keeps every token"));
  ORCD_RETURN_IF_ERROR(
      CheckRange(name("typical_p"), typical_p, {0, 1, /*low_open=*/true}, "1 keeps every token"));
  ORCD_RETURN_IF_ERROR(CheckRange(name("repetition_penalty"), repetition_penalty,
                                  {0, 100, /*low_open=*/true}, "1 is no penalty"));
  ORCD_RETURN_IF_ERROR(
      CheckRange(name("frequency_penalty"), frequency_penalty, {-100, 100}, "0 is no penalty"));
  ORCD_RETURN_IF_ERROR(
      CheckRange(name("presence_penalty"), presence_penalty, {-100, 100}, "0 is no penalty"));
  if (logit_bias.size() > kMaxLogitBiases) {
    return InvalidField(name("logit_bias"), absl::StrCat(logit_bias.size(), " entries; at most ",
                                                         kMaxLogitBiases, " are allowed"));
  }
  for (size_t i = 0; i < logit_bias.size(); ++i) {
    const auto [token, bias] = logit_bias[i];
    // An id beyond any vocabulary may have become negative; the message shows it as the caller
    // wrote it.
    const auto id = static_cast<uint32_t>(token);
    const std::string field = absl::StrCat(prefix, "logit_bias[", id, "]");
    if (token < 0 || token >= vocab) {
      return InvalidField(field, absl::StrCat("the vocabulary has no token ", id,
                                              "; its ids are 0 to ", vocab - 1));
    }
    if (i > 0 && token <= logit_bias[i - 1].first) {
      return InvalidField(field, absl::StrCat("follows token ", logit_bias[i - 1].first,
                                              "; ids must be distinct and ascending"));
    }
    ORCD_RETURN_IF_ERROR(
        CheckRange(field, bias, {-1000, 1000}, "it is added to the token's logit"));
  }
  if (logprobs < -1 || logprobs > kMaxTopLogprobs) {
    return InvalidField("logprobs", absl::StrCat(logprobs, " is outside [0, ", kMaxTopLogprobs,
                                                 "]; 0 asks for the drawn token's alone"));
  }
  return absl::OkStatus();
}

}  // namespace orcd
