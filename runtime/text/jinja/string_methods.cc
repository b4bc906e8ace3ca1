// Methods of strings.
#include <algorithm>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/text/jinja/characters.h"
#include "runtime/text/jinja/format.h"
#include "runtime/text/jinja/methods.h"
#include "runtime/text/jinja/text_operations.h"

namespace orcd::jinja {
namespace {

using Result = absl::StatusOr<Value>;

template <Case kCase>
Result InCase(Runtime& runtime, const Value& object, const Bound&) {
  return ChangeCase(runtime, object.text(), kCase);
}

Result CapitalizeString(Runtime& runtime, const Value& object, const Bound&) {
  ORCD_RETURN_IF_ERROR(runtime.StepBytes(object.text().bytes.size() * 4));
  return runtime.Make(Capitalize(runtime, object.text()));
}

// Each run of cased characters begins in title case. With `swaps`, each character changes its case
// instead.
template <bool kSwaps>
Result Title(Runtime& runtime, const Value& object, const Bound&) {
  const Text& text = object.text();
  ORCD_RETURN_IF_ERROR(runtime.StepBytes(text.bytes.size() * 4));
  TextBuilder out(runtime.arena());
  bool after_cased = false;
  for (size_t pos = 0; pos < text.bytes.size();) {
    const size_t length = CharacterLength(text.bytes, pos);
    const char32_t c = DecodeUtf8(text.bytes, pos).codepoint;
    if (kSwaps) {
      const bool upper = IsIn(kUpper, c);
      const bool lower = IsIn(kLower, c);
      if (upper || lower) {
        AppendInCase(text, pos, length, upper ? Case::kLower : Case::kUpper, out);
      } else {
        out.Append(text.Sub(pos, length));
      }
    } else {
      AppendInCase(text, pos, length, after_cased ? Case::kLower : Case::kTitle, out);
      after_cased = IsIn(kCased, c);
    }
    pos += length;
  }
  return runtime.Make(WithMarkupOf(text, out.text()));
}

template <bool kBegin, bool kEnd>
Result StripString(Runtime& runtime, const Value& object, const Bound& arguments) {
  return StripCharacters(runtime, object.text(), arguments, kBegin, kEnd);
}

// The first occurrence of `part`, or the last.
template <bool kLast>
absl::StatusOr<size_t> FindOnce(Runtime& runtime, std::string_view text, std::string_view part) {
  if (!kLast) return FindFirst(text, part);
  // The standard library compares at every position.
  ORCD_RETURN_IF_ERROR(runtime.StepBytes(part.size() * (text.size() / 256)));
  return text.rfind(part);
}

// --- Splitting

void AddPart(Runtime& runtime, const Text& text, size_t begin, size_t end,
             ArenaVector<Value>& parts) {
  parts.Add(runtime.Make(text.Sub(begin, end - begin)));
}

absl::Status SplitAtSpaces(Runtime& runtime, const Text& text, int64_t most, bool from_end,
                           ArenaVector<Value>& parts) {
  std::string_view rest = Strip(text, nullptr, !from_end, from_end).bytes;
  while (!rest.empty()) {
    ORCD_RETURN_IF_ERROR(runtime.Step());
    // `inner` is the part next to the end from which splitting goes.
    std::string_view inner = rest;
    if (most < 0 || static_cast<int64_t>(parts.size()) < most) {
      size_t length = 0;
      while (length < rest.size()) {
        const size_t size = from_end ? LastCharacterLength(rest, rest.size() - length)
                                     : CharacterLength(rest, length);
        const size_t at = from_end ? rest.size() - length - size : length;
        if (IsSpace(DecodeUtf8(rest, at).codepoint)) break;
        length += size;
      }
      inner = from_end ? rest.substr(rest.size() - length) : rest.substr(0, length);
    }
    const size_t at = inner.data() - text.bytes.data();
    AddPart(runtime, text, at, at + inner.size(), parts);
    if (from_end) {
      rest.remove_suffix(inner.size());
      rest = rest.substr(0, EndWithoutSpace(rest));
    } else {
      rest.remove_prefix(inner.size());
      rest.remove_prefix(BeginWithoutSpace(rest));
    }
  }
  return absl::OkStatus();
}

template <bool kFromEnd>
Result Split(Runtime& runtime, const Value& object, const Bound& arguments) {
  const Text& text = object.text();
  ORCD_RETURN_IF_ERROR(runtime.StepBytes(text.bytes.size()));
  ORCD_ASSIGN_OR_RETURN(const int64_t most, runtime.Integer(arguments.Or(1, Value::Int(-1))));
  ArenaVector<Value> parts(runtime.arena());
  if (!arguments.Has(0) || arguments[0].Is(Kind::kNone)) {
    ORCD_RETURN_IF_ERROR(SplitAtSpaces(runtime, text, most, kFromEnd, parts));
  } else {
    ORCD_ASSIGN_OR_RETURN(const Text separator, runtime.String(arguments[0]));
    if (separator.bytes.empty()) return runtime.Fail("empty separator");
    size_t begin = 0;
    size_t end = text.bytes.size();
    while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
      ORCD_RETURN_IF_ERROR(runtime.Step());
      const std::string_view rest = text.bytes.substr(begin, end - begin);
      ORCD_ASSIGN_OR_RETURN(const size_t found, FindOnce<kFromEnd>(runtime, rest, separator.bytes));
      if (found == std::string_view::npos) break;
      if (kFromEnd) {
        AddPart(runtime, text, found + separator.bytes.size(), end, parts);
        end = found;
      } else {
        AddPart(runtime, text, begin, begin + found, parts);
        begin += found + separator.bytes.size();
      }
    }
    AddPart(runtime, text, begin, end, parts);
  }
  if (kFromEnd) std::ranges::reverse(parts.items());
  return runtime.MakeList(parts.items());
}

template <bool kFromEnd>
Result Partition(Runtime& runtime, const Value& object, const Bound& arguments) {
  const Text& text = object.text();
  ORCD_RETURN_IF_ERROR(runtime.StepBytes(text.bytes.size()));
  ORCD_ASSIGN_OR_RETURN(const Text separator, runtime.String(arguments[0]));
  if (separator.bytes.empty()) return runtime.Fail("empty separator");
  ORCD_ASSIGN_OR_RETURN(const size_t found,
                        FindOnce<kFromEnd>(runtime, text.bytes, separator.bytes));
  const Value nothing = runtime.Make(text.Sub(0, 0));
  if (found == std::string_view::npos) {
    return kFromEnd ? runtime.MakeTuple({nothing, nothing, object})
                    : runtime.MakeTuple({object, nothing, nothing});
  }
  const size_t after = found + separator.bytes.size();
  return runtime.MakeTuple({runtime.Make(text.Sub(0, found)),
                            runtime.Make(text.Sub(found, separator.bytes.size())),
                            runtime.Make(text.Sub(after, text.bytes.size() - after))});
}

Result SplitLinesOf(Runtime& runtime, const Value& object, const Bound& arguments) {
  const bool keep_breaks = arguments.Has(0) && runtime.IsTrue(arguments[0]);
  ORCD_ASSIGN_OR_RETURN(const auto lines, SplitLines(runtime, object.text(), keep_breaks));
  ArenaVector<Value> parts(runtime.arena());
  for (const Text& line : lines) parts.Add(runtime.Make(line));
  return runtime.MakeList(parts.items());
}

// --- Searching

// The part of `object` between the bounds that arguments 1 and 2 give.
Result Bounded(Runtime& runtime, const Value& object, const Bound& arguments) {
  if (!arguments.Has(1) && !arguments.Has(2)) return object;
  return runtime.GetSlice(object, arguments.Has(1) ? &arguments[1] : nullptr,
                          arguments.Has(2) ? &arguments[2] : nullptr, nullptr);
}

template <bool kAtEnd>
Result Affixed(Runtime& runtime, const Value& object, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const Value part, Bounded(runtime, object, arguments));
  const auto fits = [&](const Value& affix) -> absl::StatusOr<bool> {
    ORCD_ASSIGN_OR_RETURN(const Text text, runtime.String(affix));
    ORCD_RETURN_IF_ERROR(runtime.StepBytes(text.bytes.size()));
    const std::string_view bytes = part.text().bytes;
    return kAtEnd ? bytes.ends_with(text.bytes) : bytes.starts_with(text.bytes);
  };
  if (!arguments[0].Is(Kind::kTuple)) {
    ORCD_ASSIGN_OR_RETURN(const bool holds, fits(arguments[0]));
    return Value::Bool(holds);
  }
  for (const Value& affix : arguments[0].sequence().items) {
    ORCD_ASSIGN_OR_RETURN(const bool holds, fits(affix));
    if (holds) return Value::Bool(true);
  }
  return Value::Bool(false);
}

// str.find and rfind; with `must`, index and rindex.
template <bool kFromEnd, bool kMust>
Result Find(Runtime& runtime, const Value& object, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const Text wanted, runtime.String(arguments[0]));
  ORCD_ASSIGN_OR_RETURN(const Value part, Bounded(runtime, object, arguments));
  const std::string_view bytes = part.text().bytes;
  ORCD_RETURN_IF_ERROR(runtime.StepBytes(bytes.size() * 2));
  ORCD_ASSIGN_OR_RETURN(const size_t found, FindOnce<kFromEnd>(runtime, bytes, wanted.bytes));
  if (found == std::string_view::npos) {
    return kMust ? Result(runtime.Fail("substring not found")) : Value::Int(-1);
  }
  const size_t before = bytes.data() - object.text().bytes.data() + found;
  return Value::Int(CountCharacters(object.text().bytes.substr(0, before)));
}

Result Count(Runtime& runtime, const Value& object, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const Text wanted, runtime.String(arguments[0]));
  ORCD_ASSIGN_OR_RETURN(const Value part, Bounded(runtime, object, arguments));
  const std::string_view bytes = part.text().bytes;
  ORCD_RETURN_IF_ERROR(runtime.StepBytes(bytes.size()));
  if (wanted.bytes.empty()) return Value::Int(CountCharacters(bytes) + 1);
  int64_t count = 0;
  for (size_t pos = 0; (pos = FindFirst(bytes, wanted.bytes, pos)) != std::string_view::npos;
       ++count) {
    ORCD_RETURN_IF_ERROR(runtime.Step());
    pos += wanted.bytes.size();
  }
  return Value::Int(count);
}

// --- Building

Result ReplaceIn(Runtime& runtime, const Value& object, const Bound& arguments) {
  const Text& text = object.text();
  ORCD_ASSIGN_OR_RETURN(const Text before, runtime.String(arguments[0]));
  // Markup escapes the text that it takes in.
  ORCD_ASSIGN_OR_RETURN(const Text after,
                        text.markup ? Escape(runtime, arguments[1]) : runtime.String(arguments[1]));
  ORCD_ASSIGN_OR_RETURN(const int64_t count, runtime.Integer(arguments.Or(2, Value::Int(-1))));
  ORCD_ASSIGN_OR_RETURN(const Text replaced, Replace(runtime, text, before, after, count));
  return runtime.Make(replaced);
}

Result JoinWith(Runtime& runtime, const Value& object, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const auto items, runtime.ToList(arguments[0]));
  ArenaVector<Text> texts(runtime.arena());
  for (const Value& item : items) {
    if (!item.Is(Kind::kString)) return runtime.TypeError("is found where str was expected", item);
    texts.Add(item.text());
  }
  ORCD_ASSIGN_OR_RETURN(const Text text,
                        Join(runtime, object.text(), texts.items(), object.text().markup));
  return runtime.Make(text);
}

template <int kLeft>
Result JustifyString(Runtime& runtime, const Value& object, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const int64_t width, runtime.Integer(arguments[0]));
  Text fill = {" "};
  if (arguments.Has(1)) {
    ORCD_ASSIGN_OR_RETURN(fill, runtime.String(arguments[1]));
  }
  ORCD_RETURN_IF_ERROR(runtime.StepBytes(fill.bytes.size()));
  if (CountCharacters(fill.bytes) != 1) {
    return runtime.Fail("the fill character must be exactly one character long");
  }
  ORCD_ASSIGN_OR_RETURN(const Text text, Justify(runtime, object.text(), width, fill.bytes, kLeft));
  return runtime.Make(text);
}

Result ZeroFill(Runtime& runtime, const Value& object, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const int64_t width, runtime.Integer(arguments[0]));
  const Text& text = object.text();
  const bool has_sign = text.bytes.starts_with('-') || text.bytes.starts_with('+');
  const size_t sign = has_sign ? 1 : 0;
  ORCD_ASSIGN_OR_RETURN(const Text digits,
                        Justify(runtime, text.Sub(sign, text.bytes.size() - sign),
                                width - static_cast<int64_t>(sign), "0", 0));
  TextBuilder out(runtime.arena());
  out.Append(text.Sub(0, sign));
  out.Append(digits);
  return runtime.Make(WithMarkupOf(text, out.text()));
}

template <bool kAtEnd>
Result RemoveAffix(Runtime& runtime, const Value& object, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const Text affix, runtime.String(arguments[0]));
  ORCD_RETURN_IF_ERROR(runtime.StepBytes(affix.bytes.size()));
  const Text& text = object.text();
  const size_t left = text.bytes.size() - std::min(text.bytes.size(), affix.bytes.size());
  const bool has = kAtEnd ? text.bytes.ends_with(affix.bytes) : text.bytes.starts_with(affix.bytes);
  if (!has) return object;
  return runtime.Make(text.Sub(kAtEnd ? 0 : affix.bytes.size(), left));
}

Result Format(Runtime& runtime, const Value& object, const Arguments& arguments) {
  return FormatBraces(runtime, object.text(), arguments);
}

// --- Properties of all characters

template <const std::span<const CharacterRange>& kRanges>
bool Has(char32_t c) {
  return IsIn(kRanges, c);
}
bool IsAlphanumeric(char32_t c) { return IsIn(kAlphabetic, c) || IsIn(kNumeric, c); }

template <bool (*kHas)(char32_t)>
Result All(Runtime& runtime, const Value& object, const Bound&) {
  const std::string_view bytes = object.text().bytes;
  ORCD_RETURN_IF_ERROR(runtime.StepBytes(bytes.size() * 4));
  for (size_t pos = 0; pos < bytes.size();) {
    const Utf8Char c = DecodeUtf8(bytes, pos);
    if (!kHas(c.codepoint)) return Value::Bool(false);
    pos += c.length;
  }
  return Value::Bool(!bytes.empty());
}

// True if there are cased characters and all are of this case.
template <bool kWantsUpper>
Result AllInCase(Runtime& runtime, const Value& object, const Bound&) {
  const std::string_view bytes = object.text().bytes;
  ORCD_RETURN_IF_ERROR(runtime.StepBytes(bytes.size() * 4));
  bool any = false;
  for (size_t pos = 0; pos < bytes.size();) {
    const Utf8Char c = DecodeUtf8(bytes, pos);
    pos += c.length;
    if (!IsIn(kCased, c.codepoint)) continue;
    if (!IsIn(kWantsUpper ? kUpper : kLower, c.codepoint)) return Value::Bool(false);
    any = true;
  }
  return Value::Bool(any);
}

Result IsAscii(Runtime& runtime, const Value& object, const Bound&) {
  const std::string_view bytes = object.text().bytes;
  ORCD_RETURN_IF_ERROR(runtime.StepBytes(bytes.size()));
  return Value::Bool(std::ranges::none_of(bytes, [](char c) { return (c & 0x80) != 0; }));
}

constexpr Parameters kCharacters = {{"chars"}};
constexpr Parameters kSplit = {{"sep", "maxsplit"}};
constexpr Parameters kSeparator = {{"sep"}, 1};
constexpr Parameters kSearch = {{"sub", "start", "end"}, 1};
constexpr Parameters kAffix = {{"prefix", "start", "end"}, 1};
constexpr Parameters kWidth = {{"width", "fillchar"}, 1};

Function Method(std::string_view name, const Parameters& parameters,
                Result (*call)(Runtime&, const Value&, const Bound&)) {
  return {.object = {},
          .name = name,
          .parameters = parameters,
          .call = call,
          .call_with_arguments = nullptr};
}

const Function kMethods[] = {
    Method("upper", {}, InCase<Case::kUpper>),
    Method("lower", {}, InCase<Case::kLower>),
    Method("title", {}, Title<false>),
    Method("swapcase", {}, Title<true>),
    Method("capitalize", {}, CapitalizeString),
    Method("strip", kCharacters, StripString<true, true>),
    Method("lstrip", kCharacters, StripString<true, false>),
    Method("rstrip", kCharacters, StripString<false, true>),
    Method("split", kSplit, Split<false>),
    Method("rsplit", kSplit, Split<true>),
    Method("splitlines", {{"keepends"}}, SplitLinesOf),
    Method("partition", kSeparator, Partition<false>),
    Method("rpartition", kSeparator, Partition<true>),
    Method("startswith", kAffix, Affixed<false>),
    Method("endswith", kAffix, Affixed<true>),
    Method("find", kSearch, Find<false, false>),
    Method("rfind", kSearch, Find<true, false>),
    Method("index", kSearch, Find<false, true>),
    Method("rindex", kSearch, Find<true, true>),
    Method("count", kSearch, Count),
    Method("replace", {{"old", "new", "count"}, 2}, ReplaceIn),
    Method("join", {{"iterable"}, 1}, JoinWith),
    Method("center", kWidth, JustifyString<1>),
    Method("ljust", kWidth, JustifyString<2>),
    Method("rjust", kWidth, JustifyString<0>),
    Method("zfill", {{"width"}, 1}, ZeroFill),
    Method("removeprefix", {{"prefix"}, 1}, RemoveAffix<false>),
    Method("removesuffix", {{"suffix"}, 1}, RemoveAffix<true>),
    Method("isalpha", {}, All<Has<kAlphabetic>>),
    Method("isdecimal", {}, All<Has<kDecimal>>),
    Method("isdigit", {}, All<Has<kDigit>>),
    Method("isnumeric", {}, All<Has<kNumeric>>),
    Method("isalnum", {}, All<IsAlphanumeric>),
    Method("isspace", {}, All<IsSpace>),
    Method("isupper", {}, AllInCase<true>),
    Method("islower", {}, AllInCase<false>),
    Method("isascii", {}, IsAscii),
    {.object = {},
     .name = "format",
     .parameters = {},
     .call = nullptr,
     .call_with_arguments = Format},
};

}  // namespace

std::span<const Function> StringMethods() { return kMethods; }

}  // namespace orcd::jinja
