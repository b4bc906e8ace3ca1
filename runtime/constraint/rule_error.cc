#include "runtime/constraint/rule_error.h"

#include <algorithm>
#include <cstddef>

#include "runtime/base/error.h"
#include "runtime/base/utf8.h"

namespace orcd {
namespace {

constexpr size_t kMaxLine = 300;
constexpr std::string_view kCut = "…";

std::string Message(std::string_view field, std::string_view message) {
  return std::string(field).append(": ").append(OneLine(message));
}

}  // namespace

absl::Status InvalidRule(std::string_view field, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, Message(field, message),
                   {.reason = "CONSTRAINT_INVALID", .field = std::string(field)});
}

absl::Status UnsupportedRule(std::string_view field, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, Message(field, message),
                   {.reason = "CONSTRAINT_UNSUPPORTED", .field = std::string(field)});
}

absl::Status UnsatisfiableRule(std::string_view field, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, Message(field, message),
                   {.reason = "CONSTRAINT_UNSATISFIABLE", .field = std::string(field)});
}

absl::Status RuleTooLarge(std::string_view field, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, Message(field, message),
                   {.reason = "CONSTRAINT_TOO_LARGE", .field = std::string(field)});
}

std::string OneLine(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  text = text.substr(begin, text.find_first_of("\r\n", begin) - begin);
  // Each invalid byte becomes three, so a longer text need not be converted.
  std::string line = ReplaceInvalidUtf8(text.substr(0, 2 * kMaxLine));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  if (line.size() <= kMaxLine) return line;
  size_t end = kMaxLine - kCut.size();
  while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xC0) == 0x80) --end;
  return line.substr(0, end).append(kCut);
}

}  // namespace orcd
