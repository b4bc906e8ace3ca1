#include "runtime/model/arch/keys.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <variant>
#include <vector>

#include "absl/strings/str_format.h"
#include "runtime/base/error.h"
#include "runtime/model/model_error.h"

namespace orcd {
namespace {

constexpr std::string_view kConvertAgain =
    "the file is damaged or was made wrongly, convert it again";

}  // namespace

std::string Keys::Key(std::string_view name) const {
  return absl::StrFormat("%s.%s", architecture_, name);
}

bool Keys::Has(std::string_view name) const { return gguf_.Find(Key(name)) != nullptr; }

absl::Status Keys::Invalid(std::string_view name, std::string_view what) const {
  return InvalidModel(Key(name), absl::StrFormat("key \"%s\" %s", Key(name), what));
}

absl::Status Keys::Unsupported(std::string_view name, std::string_view what) const {
  return UnsupportedModel(Key(name), absl::StrFormat("key \"%s\" %s", Key(name), what));
}

absl::StatusOr<int> Keys::Size(std::string_view name, int max, int fallback) const {
  if (fallback != 0 && !Has(name)) return fallback;
  const absl::StatusOr<uint32_t> value = gguf_.GetU32(Key(name));
  if (!value.ok()) return MissingKeyIsInvalid(value.status());
  if (*value > 0 && *value <= static_cast<uint32_t>(max)) return static_cast<int>(*value);
  return Invalid(
      name, absl::StrFormat("is %d and has to be from 1 to %d; %s", *value, max, kConvertAgain));
}

absl::StatusOr<int> Keys::Count(std::string_view name, int max, int fallback) const {
  if (!Has(name)) return fallback;
  ORCD_ASSIGN_OR_RETURN(const uint32_t value, gguf_.GetU32(Key(name)));
  if (value <= static_cast<uint32_t>(max)) return static_cast<int>(value);
  return Invalid(
      name, absl::StrFormat("is %d and has to be from 0 to %d; %s", value, max, kConvertAgain));
}

absl::StatusOr<int> Keys::SizeOfLayers(std::string_view name, int max, int layers,
                                       int fallback) const {
  const GgufEntry* const entry = gguf_.Find(Key(name));
  if (entry == nullptr || entry->type != GgufType::kArray) return Size(name, max, fallback);
  ORCD_ASSIGN_OR_RETURN(const std::vector<int32_t> values, gguf_.GetI32s(Key(name)));
  if (values.size() != static_cast<size_t>(layers)) {
    return Invalid(name, absl::StrFormat("holds %d numbers for %d layers; %s", values.size(),
                                         layers, kConvertAgain));
  }
  const auto other = std::ranges::adjacent_find(values, std::not_equal_to<>());
  if (other != values.end()) {
    return Unsupported(name, absl::StrFormat("differs between layers (%d and %d); only layers of "
                                             "one shape are computed here, load another model",
                                             *other, *std::next(other)));
  }
  if (values[0] > 0 && values[0] <= max) return values[0];
  return Invalid(name, absl::StrFormat("holds %d and has to hold numbers from 1 to %d; %s",
                                       values[0], max, kConvertAgain));
}

absl::StatusOr<float> Keys::NumberBetween(std::string_view name, float low, float high,
                                          std::optional<float> fallback) const {
  if (fallback && !Has(name)) return *fallback;
  const absl::StatusOr<float> value = gguf_.GetF32(Key(name));
  if (!value.ok()) return MissingKeyIsInvalid(value.status());
  if (*value > low && *value < high) return *value;
  return Invalid(name, absl::StrFormat("is %g and has to be between %g and %g; %s", *value, low,
                                       high, kConvertAgain));
}

absl::StatusOr<float> Keys::Scale(std::string_view name, std::optional<float> fallback) const {
  return NumberBetween(name, 1e-6f, 1e6f, fallback);
}

absl::StatusOr<float> Keys::ScaleOrZero(std::string_view name) const {
  if (!Has(name)) return 0;
  ORCD_ASSIGN_OR_RETURN(const float value, gguf_.GetF32(Key(name)));
  if (value == 0) return 0;
  return Scale(name);
}

absl::StatusOr<bool> Keys::Bool(std::string_view name, bool fallback) const {
  if (!Has(name)) return fallback;
  return gguf_.GetBool(Key(name));
}

}  // namespace orcd
