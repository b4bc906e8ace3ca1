#include "runtime/text/jinja/text_operations.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/text/jinja/characters.h"

namespace orcd::jinja {
namespace {

bool IsLineBreak(char32_t c) {
  return (c >= 0xA && c <= 0xD) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

}  // namespace

Text WithMarkupOf(const Text& source, Text text) {
  text.markup = source.markup;
  return text;
}

Text Strip(const Text& text, const Text* characters, bool at_begin, bool at_end) {
  const std::string_view bytes = text.bytes;
  size_t begin = 0;
  size_t end = bytes.size();
  if (characters == nullptr) {
    if (at_begin) begin = BeginWithoutSpace(bytes);
    if (at_end) end = EndWithoutSpace(bytes.substr(begin)) + begin;
    return text.Sub(begin, end - begin);
  }
  // UTF-8 of one character is never a part of another's.
  const auto strips = [&](size_t pos, size_t length) {
    return characters->bytes.find(bytes.substr(pos, length)) != std::string_view::npos;
  };
  while (at_begin && begin < end) {
    const size_t length = CharacterLength(bytes, begin);
    if (!strips(begin, length)) break;
    begin += length;
  }
  while (at_end && end > begin) {
    const size_t length = LastCharacterLength(bytes, end);
    if (!strips(end - length, length)) break;
    end -= length;
  }
  return text.Sub(begin, end - begin);
}

absl::StatusOr<Value> StripCharacters(Runtime& runtime, const Text& text, const Bound& arguments,
                                      bool at_begin, bool at_end) {
  ORCD_RETURN_IF_ERROR(runtime.StepBytes(text.bytes.size()));
  if (!arguments.Has(0) || arguments[0].Is(Kind::kNone)) {
    return runtime.Make(Strip(text, nullptr, at_begin, at_end));
  }
  ORCD_ASSIGN_OR_RETURN(const Text characters, runtime.String(arguments[0]));
  // A long set is searched once for each character that goes.
  ORCD_RETURN_IF_ERROR(runtime.Step(characters.bytes.size() * text.bytes.size() / 64));
  return runtime.Make(Strip(text, &characters, at_begin, at_end));
}

absl::StatusOr<Value> ChangeCase(Runtime& runtime, const Text& text, Case to) {
  ORCD_RETURN_IF_ERROR(runtime.StepBytes(text.bytes.size() * 4));
  TextBuilder out(runtime.arena());
  AppendInCase(text, to, out);
  return runtime.Make(WithMarkupOf(text, out.text()));
}

absl::StatusOr<Text> Replace(Runtime& runtime, const Text& text, const Text& before,
                             const Text& after, int64_t count) {
  ORCD_RETURN_IF_ERROR(runtime.StepBytes(text.bytes.size()));
  TextBuilder out(runtime.arena());
  const std::string_view bytes = text.bytes;
  size_t pos = 0;
  bool found = false;
  for (int64_t i = 0; count < 0 || i < count; ++i) {
    // An empty text is found before every character and at the end.
    const bool is_empty = before.bytes.empty();
    size_t at = is_empty ? pos : FindFirst(bytes, before.bytes, pos);
    if (is_empty && i > 0) at = pos < bytes.size() ? pos + CharacterLength(bytes, pos) : bytes.npos;
    if (at == std::string_view::npos) break;
    ORCD_RETURN_IF_ERROR(runtime.Step(1 + after.bytes.size() / kBytesPerStep));
    out.Append(text.Sub(pos, at - pos));
    out.Append(after);
    pos = at + before.bytes.size();
    found = true;
  }
  if (!found) return text;
  out.Append(text.Sub(pos, bytes.size() - pos));
  Text result = out.text();
  result.markup = text.markup;
  return result;
}

absl::StatusOr<std::span<const Text>> SplitLines(Runtime& runtime, const Text& text,
                                                 bool keep_breaks) {
  ORCD_RETURN_IF_ERROR(runtime.StepBytes(text.bytes.size() * 4));
  const std::string_view bytes = text.bytes;
  ArenaVector<Text> lines(runtime.arena());
  size_t begin = 0;
  for (size_t pos = 0; pos < bytes.size();) {
    const Utf8Char c = DecodeUtf8(bytes, pos);
    const size_t end = pos;
    pos += c.length;
    if (!IsLineBreak(c.codepoint)) continue;
    if (c.codepoint == '\r' && pos < bytes.size() && bytes[pos] == '\n') ++pos;
    lines.Add(text.Sub(begin, (keep_breaks ? pos : end) - begin));
    begin = pos;
  }
  if (begin < bytes.size()) lines.Add(text.Sub(begin, bytes.size() - begin));
  ORCD_RETURN_IF_ERROR(runtime.Step(lines.size()));
  return std::span<const Text>(lines.items());
}

absl::StatusOr<Text> Justify(Runtime& runtime, const Text& text, int64_t width,
                             std::string_view fill, int left) {
  ORCD_RETURN_IF_ERROR(runtime.StepBytes(text.bytes.size()));
  const int64_t missing = width - static_cast<int64_t>(CountCharacters(text.bytes));
  if (missing <= 0) return text;
  if (missing > kMaxSteps) return runtime.Step(kMaxSteps + 1);
  ORCD_RETURN_IF_ERROR(runtime.Step(missing));
  // Python puts the odd one of a centred text to the left if the width is odd.
  const int64_t before = left == 0 ? missing : left == 2 ? 0 : missing / 2 + (missing & width & 1);
  TextBuilder out(runtime.arena());
  for (int64_t i = 0; i < before; ++i) out.Append(fill);
  out.Append(text);
  for (int64_t i = before; i < missing; ++i) out.Append(fill);
  Text result = out.text();
  result.markup = text.markup;
  return result;
}

Text Capitalize(Runtime& runtime, const Text& text) {
  if (text.bytes.empty()) return text;
  TextBuilder out(runtime.arena());
  out.Reserve(text.bytes.size());
  const size_t first = CharacterLength(text.bytes, 0);
  AppendInCase(text, 0, first, Case::kTitle, out);
  for (size_t pos = first; pos < text.bytes.size();) {
    const size_t length = CharacterLength(text.bytes, pos);
    AppendInCase(text, pos, length, Case::kLower, out);
    pos += length;
  }
  Text result = out.text();
  result.markup = text.markup;
  return result;
}

absl::StatusOr<Text> Join(Runtime& runtime, const Text& separator, std::span<const Text> items,
                          bool escapes) {
  bool is_markup = escapes && separator.markup;
  size_t bytes = 0;
  for (const Text& item : items) {
    is_markup |= escapes && item.markup;
    bytes += item.bytes.size() + separator.bytes.size();
  }
  ORCD_RETURN_IF_ERROR(runtime.Step(items.size() + bytes / kBytesPerStep));
  TextBuilder out(runtime.arena());
  out.Reserve(bytes);
  for (size_t i = 0; i < items.size(); ++i) {
    const Text* const parts[] = {&separator, &items[i]};
    for (const Text* part : std::span(parts).subspan(i == 0 ? 1 : 0)) {
      is_markup ? out.AppendEscaped(*part) : out.Append(*part);
    }
  }
  Text result = out.text();
  result.markup = is_markup;
  return result;
}

absl::StatusOr<Text> Escape(Runtime& runtime, const Value& value) {
  ORCD_ASSIGN_OR_RETURN(const Text text, runtime.ToText(value));
  ORCD_RETURN_IF_ERROR(runtime.StepBytes(text.bytes.size()));
  TextBuilder out(runtime.arena());
  out.AppendEscaped(text);
  Text result = out.text();
  result.markup = true;
  return result;
}

}  // namespace orcd::jinja
