#include "runtime/model/sampling_defaults.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace orcd {
namespace {

template <std::optional<float> PartialSampling::*kField>
void SetFloat(PartialSampling& params, double value) {
  params.*kField = static_cast<float>(value);
}

// No integer becomes -1, which no range has.
void SetTopK(PartialSampling& params, double value) {
  constexpr double kMost = std::numeric_limits<int32_t>::max();
  const double clamped = std::fmin(std::fmax(value, 0), kMost);
  params.top_k = value == std::floor(value) ? static_cast<int32_t>(clamped) : -1;
}

struct Row {
  std::string_view key;
  void (*set)(PartialSampling& params, double value);
};

constexpr Row kRows[] = {
    {"general.sampling.temp", SetFloat<&PartialSampling::temperature>},
    {"general.sampling.top_k", SetTopK},
    {"general.sampling.top_p", SetFloat<&PartialSampling::top_p>},
    {"general.sampling.min_p", SetFloat<&PartialSampling::min_p>},
    {"general.sampling.penalty_repeat", SetFloat<&PartialSampling::repetition_penalty>},
};

// Keys without a counterpart, and the number that asks for nothing.
struct Unknown {
  std::string_view key;
  std::optional<double> neutral;
};
constexpr Unknown kUnknown[] = {
    {"general.sampling.sequence", std::nullopt},
    {"general.sampling.xtc_probability", 0},
    {"general.sampling.penalty_last_n", -1},
    {"general.sampling.mirostat", 0},
};

// Nullopt if the value is no number.
std::optional<double> Number(const GgufEntry& entry) {
  if (const auto* number = std::get_if<uint64_t>(&entry.value)) {
    return static_cast<double>(*number);
  }
  if (const auto* number = std::get_if<int64_t>(&entry.value)) return static_cast<double>(*number);
  if (const auto* number = std::get_if<double>(&entry.value)) return *number;
  return std::nullopt;
}

// Empty if the value was set.
std::string Set(const Row& row, const GgufEntry& entry, PartialSampling& params) {
  const std::optional<double> number = Number(entry);
  if (!number) return absl::StrCat("is no number but ", std::string(GgufTypeName(entry.type)));
  PartialSampling with = params;
  row.set(with, *number);
  SamplingParams checked;
  with.ApplyTo(checked);
  if (const absl::Status status = checked.Validate(/*vocab=*/1, /*prefix=*/""); !status.ok()) {
    return absl::StrCat("is ", *number, " (", status.message(), ")");
  }
  params = with;
  return "";
}

}  // namespace

SamplingDefaults ReadSamplingDefaults(const GgufReader& gguf) {
  SamplingDefaults defaults;
  for (const Row& row : kRows) {
    const GgufEntry* const entry = gguf.Find(row.key);
    if (entry == nullptr) continue;
    if (const std::string wrong = Set(row, *entry, defaults.params); !wrong.empty()) {
      defaults.warnings.push_back(
          absl::StrCat(std::string(row.key), " ", wrong, ": it is ignored"));
    }
  }
  for (const Unknown& unknown : kUnknown) {
    const GgufEntry* const entry = gguf.Find(unknown.key);
    if (entry == nullptr || (unknown.neutral && Number(*entry) == unknown.neutral)) continue;
    defaults.warnings.push_back(absl::StrCat(std::string(unknown.key),
                                             " has no counterpart in this worker: it is ignored"));
  }
  return defaults;
}

}  // namespace orcd
