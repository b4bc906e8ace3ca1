#include "runtime/constraint/schema_strings.h"

#include <algorithm>
#include <iterator>

namespace orcd {
namespace {

constexpr std::string_view kByLibrary[] = {"duration", "email", "ipv4", "ipv6", "uri", "uuid"};
constexpr std::string_view kByPattern[] = {"date", "date-time", "hostname", "time"};
constexpr std::string_view kUnsupported[] = {
    "idn-email", "idn-hostname",          "iri",           "iri-reference", "json-pointer",
    "regex",     "relative-json-pointer", "uri-reference", "uri-template",
};

// A year from 0001 to 9999, and one that has February 29th.
constexpr std::string_view kYear = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)";
constexpr std::string_view kLeapYear =
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)";
constexpr std::string_view kDay =
    "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))";
constexpr std::string_view kTime =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?"
    "(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";

constexpr std::string_view kHostLabel =
    "(?:[A-Za-z0-9](?:[A-Za-z0-9-]?[A-Za-z0-9])?"
    "|[A-Za-z0-9][A-Za-z0-9-]{2}[A-Za-z0-9]"
    "|[A-Za-z0-9][A-Za-z0-9-](?:[A-Za-z0-9][A-Za-z0-9-]|-[A-Za-z0-9])[A-Za-z0-9-]{0,58}[A-Za-z0-9]"
    ")";
// RFC 1035, without the length bytes at both ends.
constexpr size_t kMaxHost = 253;

std::optional<int> HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

}  // namespace

FormatSupport FormatSupportOf(std::string_view format) {
  const auto is_in = [&](const auto& names) {
    return std::ranges::find(names, format) != std::end(names);
  };
  if (is_in(kByLibrary)) return FormatSupport::kByLibrary;
  if (is_in(kByPattern)) return FormatSupport::kByPattern;
  return is_in(kUnsupported) ? FormatSupport::kUnsupported : FormatSupport::kAnnotation;
}

std::string PatternOfFormat(std::string_view format) {
  std::string pattern = "^";
  if (format == "hostname") {
    return pattern.append(kHostLabel).append("(?:\\.").append(kHostLabel).append(")*$");
  }
  if (format != "time") {
    pattern.append("(?:").append(kYear).append(kDay);
    pattern.append("|").append(kLeapYear).append("-02-29)");
  }
  if (format == "date-time") pattern += "[tT]";
  if (format != "date") pattern += kTime;
  return pattern += '$';
}

size_t MaxLengthOfFormat(std::string_view format) { return format == "hostname" ? kMaxHost : 0; }

std::optional<std::string> DecodePointerToken(std::string_view token) {
  std::string decoded;
  for (size_t i = 0; i < token.size(); ++i) {
    if (token[i] != '%') {
      decoded += token[i];
      continue;
    }
    if (token.size() - i < 3) return std::nullopt;
    const std::optional<int> high = HexDigit(token[i + 1]);
    const std::optional<int> low = HexDigit(token[i + 2]);
    if (!high || !low) return std::nullopt;
    decoded += static_cast<char>(*high * 16 + *low);
    i += 2;
  }
  std::string unescaped;
  for (size_t i = 0; i < decoded.size(); ++i) {
    if (decoded[i] != '~') {
      unescaped += decoded[i];
      continue;
    }
    ++i;
    if (i == decoded.size() || (decoded[i] != '0' && decoded[i] != '1')) return std::nullopt;
    unescaped += decoded[i] == '0' ? '~' : '/';
  }
  return unescaped;
}

bool NeedsUnicodeEscape(std::string_view text) {
  constexpr std::string_view kShort = "\b\f\n\r\t";
  return std::ranges::any_of(text, [&](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && kShort.find(c) == std::string_view::npos) || byte == 0x7F;
  });
}

std::optional<size_t> ListIndex(std::string_view token) {
  constexpr size_t kMostDigits = 9;
  if (token.empty() || token.size() > kMostDigits) return std::nullopt;
  size_t index = 0;
  for (const char c : token) {
    if (c < '0' || c > '9') return std::nullopt;
    index = index * 10 + static_cast<size_t>(c - '0');
  }
  return index;
}

}  // namespace orcd
