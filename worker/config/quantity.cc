#include "worker/config/quantity.h"

#include <charconv>
#include <string>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace orcd {
namespace {

absl::string_view Strip(std::string_view text) {
  return absl::StripAsciiWhitespace(absl::string_view(text.data(), text.size()));
}

// Removes the leading decimal number from `text`. It has no sign and is no word such as inf.
bool ConsumeNumber(absl::string_view& text, double& number) {
  if (text.empty() ||
      !(absl::ascii_isdigit(static_cast<unsigned char>(text[0])) || text[0] == '.')) {
    return false;
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

// Returns the factor of a unit; 0 if there is no such unit.
double Factor(absl::string_view unit) {
  std::string name = absl::AsciiStrToLower(unit);
  if (name.empty() || name == "b") return 1;
  if (name.back() == 'b') name.pop_back();
  const bool binary = name.size() == 2 && name.back() == 'i';
  if (binary) name.pop_back();
  const size_t power = absl::string_view("kmgtpe").find(name);
  if (name.size() != 1 || power == absl::string_view::npos) return 0;
  double factor = 1;
  for (size_t i = 0; i <= power; ++i) factor *= binary ? 1024 : 1000;
  return factor;
}

}  // namespace

absl::StatusOr<int64_t> ParseBytes(std::string_view text) {
  const auto wrong = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", absl::string_view(text.data(), text.size()),
                     "' is not a number of bytes, such as 2GiB or 500000000: ", why));
  };
  absl::string_view rest = Strip(text);
  if (rest.empty()) return wrong("it is empty");
  if (rest[0] == '-') return wrong("it is negative");
  double number = 0;
  if (!ConsumeNumber(rest, number)) return wrong("it does not begin with a number");
  const absl::string_view unit = absl::StripLeadingAsciiWhitespace(rest);
  if (unit == "m") {
    return wrong("'m' is a thousandth to Kubernetes; write M for 10^6 bytes or Mi for 2^20");
  }
  const double factor = Factor(unit);
  if (factor == 0) {
    return wrong(absl::StrCat("the unit '", unit,
                              "' is none of B, K, M, G, T (powers of 1000), Ki, Mi, Gi, Ti (powers "
                              "of 1024), KB, KiB and so on"));
  }
  const double bytes = number * factor;
  if (bytes >= 0x1p63) return wrong("it is 2^63 bytes or more");
  if (bytes > 0 && bytes < 1) return wrong("it is less than one byte");
  return static_cast<int64_t>(bytes);
}

absl::StatusOr<double> ParseShare(std::string_view text) {
  absl::string_view rest = Strip(text);
  double share = 0;
  // Every comparison with NaN is false.
  if (ConsumeNumber(rest, share) && rest.empty() && share >= 0 && share <= 1) return share;
  return absl::InvalidArgumentError(absl::StrCat("'", absl::string_view(text.data(), text.size()),
                                                 "' is not a number of 0 to 1, such as 0.9"));
}

}  // namespace orcd
