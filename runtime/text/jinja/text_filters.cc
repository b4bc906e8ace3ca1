// Filters that make texts.
#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/text/jinja/characters.h"
#include "runtime/text/jinja/filters.h"
#include "runtime/text/jinja/format.h"
#include "runtime/text/jinja/runtime.h"
#include "runtime/text/jinja/text_operations.h"

namespace orcd::jinja {
namespace {

using Result = absl::StatusOr<Value>;

template <Case kCase>
Result InCase(Runtime& runtime, const Value& value, const Bound&) {
  ORCD_ASSIGN_OR_RETURN(const Text text, runtime.ToText(value));
  return ChangeCase(runtime, text, kCase);
}

Result CapitalizeText(Runtime& runtime, const Value& value, const Bound&) {
  ORCD_ASSIGN_OR_RETURN(const Text text, runtime.ToText(value));
  ORCD_RETURN_IF_ERROR(runtime.StepBytes(text.bytes.size() * 4));
  return runtime.Make(Capitalize(runtime, text));
}

bool BeginsWord(char32_t before) {
  constexpr std::u32string_view kBreaks = U"-({[<";
  return IsSpace(before) || kBreaks.find(before) != std::u32string_view::npos;
}

// Words begin after white space and some signs, unlike those of str.title().
Result Title(Runtime& runtime, const Value& value, const Bound&) {
  ORCD_ASSIGN_OR_RETURN(const Text text, runtime.ToText(value));
  ORCD_RETURN_IF_ERROR(runtime.StepBytes(text.bytes.size() * 4));
  TextBuilder out(runtime.arena());
  for (size_t pos = 0; pos < text.bytes.size();) {
    const size_t first = CharacterLength(text.bytes, pos);
    AppendInCase(text, pos, first, Case::kUpper, out);
    const size_t begin = pos + first;
    const bool is_break = BeginsWord(DecodeUtf8(text.bytes, pos).codepoint);
    pos = begin;
    while (!is_break && pos < text.bytes.size()) {
      const Utf8Char c = DecodeUtf8(text.bytes, pos);
      if (BeginsWord(c.codepoint)) break;
      pos += c.length;
    }
    AppendInCase(text.Sub(begin, pos - begin), Case::kLower, out);
  }
  return runtime.Make(out.text());
}

Result Trim(Runtime& runtime, const Value& value, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const Text text, runtime.ToText(value));
  return StripCharacters(runtime, text, arguments, true, true);
}

Result ReplaceText(Runtime& runtime, const Value& value, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(Text text, runtime.ToText(value));
  ORCD_ASSIGN_OR_RETURN(const Text before, runtime.ToText(arguments[0]));
  ORCD_ASSIGN_OR_RETURN(const Text after, runtime.ToText(arguments[1]));
  int64_t count = -1;
  if (arguments.Has(2) && !arguments[2].Is(Kind::kNone)) {
    ORCD_ASSIGN_OR_RETURN(count, runtime.Integer(arguments[2]));
  }
  text.markup = false;
  ORCD_ASSIGN_OR_RETURN(const Text replaced, Replace(runtime, text, before, after, count));
  return runtime.Make(replaced);
}

Result Center(Runtime& runtime, const Value& value, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const Text text, runtime.ToText(value));
  ORCD_ASSIGN_OR_RETURN(const int64_t width, runtime.Integer(arguments.Or(0, Value::Int(80))));
  ORCD_ASSIGN_OR_RETURN(const Text centred, Justify(runtime, text, width, " ", 1));
  return runtime.Make(centred);
}

Result Indent(Runtime& runtime, const Value& value, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const Text text, runtime.String(value));
  const Value width = arguments.Or(0, Value::Int(4));
  Text indention;
  if (width.Is(Kind::kString)) {
    indention = width.text();
  } else {
    ORCD_ASSIGN_OR_RETURN(const int64_t spaces, runtime.Integer(width));
    ORCD_ASSIGN_OR_RETURN(indention, runtime.Repeat({" "}, spaces));
  }
  const bool first = arguments.Has(1) && runtime.IsTrue(arguments[1]);
  const bool blank = arguments.Has(2) && runtime.IsTrue(arguments[2]);
  TextBuilder ended(runtime.arena());
  ended.Append(text);
  ended.Append("\n");
  ORCD_ASSIGN_OR_RETURN(const auto lines, SplitLines(runtime, ended.text(), false));
  TextBuilder out(runtime.arena());
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.Append("\n");
    const bool indents = i == 0 ? first : blank || !lines[i].bytes.empty();
    if (indents) out.Append(indention);
    out.Append(lines[i]);
    ORCD_RETURN_IF_ERROR(
        runtime.StepBytes(lines[i].bytes.size() + (indents ? indention.bytes.size() : 0)));
  }
  return runtime.Make(WithMarkupOf(text, out.text()));
}

Result Truncate(Runtime& runtime, const Value& value, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const int64_t length, runtime.Integer(arguments.Or(0, Value::Int(255))));
  const bool kill_words = arguments.Has(1) && runtime.IsTrue(arguments[1]);
  Text end = {"..."};
  if (arguments.Has(2)) {
    ORCD_ASSIGN_OR_RETURN(end, runtime.String(arguments[2]));
  }
  int64_t leeway = 5;
  if (arguments.Has(3) && !arguments[3].Is(Kind::kNone)) {
    ORCD_ASSIGN_OR_RETURN(leeway, runtime.Integer(arguments[3]));
  }
  ORCD_RETURN_IF_ERROR(runtime.StepBytes(end.bytes.size()));
  const auto end_length = static_cast<int64_t>(CountCharacters(end.bytes));
  if (length < end_length) return runtime.Fail("truncate: the length is less than that of the end");
  if (leeway < 0) return runtime.Fail("truncate: the leeway is negative");
  ORCD_ASSIGN_OR_RETURN(const int64_t characters, runtime.Length(value));
  if (characters - leeway <= length) return value;
  ORCD_ASSIGN_OR_RETURN(const Text text, runtime.String(value));
  Text kept = text.Sub(0, PositionOf(text.bytes, length - end_length));
  if (!kill_words) {
    const size_t space = kept.bytes.rfind(' ');
    if (space != std::string_view::npos) kept = kept.Sub(0, space);
  }
  TextBuilder out(runtime.arena());
  out.Append(kept);
  out.Append(end);
  return runtime.Make(WithMarkupOf(text, out.text()));
}

Result ToString(Runtime& runtime, const Value& value, const Bound&) {
  if (value.Is(Kind::kString)) return value;
  ORCD_ASSIGN_OR_RETURN(const Text text, runtime.ToText(value));
  return runtime.Make(text);
}

Result MarkSafe(Runtime& runtime, const Value& value, const Bound&) {
  ORCD_ASSIGN_OR_RETURN(Text text, runtime.ToText(value));
  text.markup = true;
  return runtime.Make(text);
}

template <bool kForced>
Result EscapeText(Runtime& runtime, const Value& value, const Bound&) {
  Value source = value;
  if (kForced && value.Is(Kind::kString)) {
    Text text = value.text();
    text.markup = false;
    source = runtime.Make(text);
  }
  ORCD_ASSIGN_OR_RETURN(const Text text, Escape(runtime, source));
  return runtime.Make(text);
}

Result Format(Runtime& runtime, const Value& value, const Arguments& arguments) {
  ORCD_ASSIGN_OR_RETURN(const Text format, runtime.ToText(value));
  if (!arguments.positional.empty() && !arguments.keywords.empty()) {
    return runtime.Fail("format: either positional or keyword arguments are allowed");
  }
  if (arguments.keywords.empty()) {
    return FormatPercent(
        runtime, format,
        Value(runtime.arena().New<Sequence>(Sequence{arguments.positional}), true));
  }
  ArenaVector<DictEntry> entries(runtime.arena());
  for (const Keyword& keyword : arguments.keywords) {
    entries.Add({runtime.MakeString(keyword.name), keyword.value});
  }
  return FormatPercent(runtime, format, runtime.MakeDict(entries.items()));
}

Result ToJson(Runtime& runtime, const Value& value, const Bound& arguments) {
  Runtime::JsonFormat format;
  format.ensure_ascii = arguments.Has(0) && runtime.IsTrue(arguments[0]);
  Text indent;
  if (arguments.Has(1) && !arguments[1].Is(Kind::kNone)) {
    if (arguments[1].Is(Kind::kString)) {
      indent = arguments[1].text();
    } else {
      ORCD_ASSIGN_OR_RETURN(const int64_t spaces, runtime.Integer(arguments[1]));
      ORCD_ASSIGN_OR_RETURN(indent, runtime.Repeat({" "}, spaces));
    }
    format.indent = &indent;
    format.item_separator = ",";
  }
  if (arguments.Has(2) && !arguments[2].Is(Kind::kNone)) {
    ORCD_ASSIGN_OR_RETURN(const auto separators, runtime.ToList(arguments[2]));
    if (separators.size() != 2) return runtime.Fail("tojson: separators are two strings");
    ORCD_ASSIGN_OR_RETURN(const Text item, runtime.String(separators[0]));
    ORCD_ASSIGN_OR_RETURN(const Text key, runtime.String(separators[1]));
    format.item_separator = item.bytes;
    format.key_separator = key.bytes;
  }
  format.sort_keys = arguments.Has(3) && runtime.IsTrue(arguments[3]);
  TextBuilder out(runtime.arena());
  ORCD_RETURN_IF_ERROR(runtime.AppendJson(value, format, out));
  return runtime.Make(out.text());
}

// Appends `text` quoted for a path, or for a query with `is_query`.
void AppendQuoted(const Text& text, bool is_query, TextBuilder& out) {
  for (size_t i = 0; i < text.bytes.size(); ++i) {
    const char c = text.bytes[i];
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
        std::string_view("_.-~").find(c) != std::string_view::npos || (c == '/' && !is_query)) {
      out.Append(text.Sub(i, 1));
    } else if (c == ' ' && is_query) {
      out.Append("+");
    } else {
      static constexpr char kDigits[] = "0123456789ABCDEF";
      const auto byte = static_cast<uint8_t>(c);
      const char escaped[] = {'%', kDigits[byte >> 4], kDigits[byte & 0xF]};
      out.Append({escaped, sizeof(escaped)});
    }
  }
}

// A text, or a mapping or pairs as a query.
Result UrlEncode(Runtime& runtime, const Value& value, const Bound&) {
  TextBuilder out(runtime.arena());
  if (value.Is(Kind::kString) || value.IsNumber() || value.Is(Kind::kNone)) {
    ORCD_ASSIGN_OR_RETURN(const Text text, runtime.ToText(value));
    ORCD_RETURN_IF_ERROR(runtime.StepBytes(text.bytes.size() * 4));
    AppendQuoted(text, /*is_query=*/false, out);
    return runtime.Make(out.text());
  }
  Value pairs = value;
  if (value.Is(Kind::kDict)) {
    pairs = Value(runtime.arena().New<DictView>(DictView{&value.dict(), DictView::Of::kItems}));
  }
  ORCD_ASSIGN_OR_RETURN(const auto items, runtime.ToList(pairs));
  for (size_t i = 0; i < items.size(); ++i) {
    ORCD_ASSIGN_OR_RETURN(const auto parts, runtime.ToList(items[i]));
    if (parts.size() != 2) return runtime.Fail("urlencode: a pair is expected");
    if (i > 0) out.Append("&");
    for (int part = 0; part < 2; ++part) {
      ORCD_ASSIGN_OR_RETURN(const Text text, runtime.ToText(parts[part]));
      ORCD_RETURN_IF_ERROR(runtime.StepBytes(text.bytes.size() * 4));
      if (part == 1) out.Append("=");
      AppendQuoted(text, /*is_query=*/true, out);
    }
  }
  return runtime.Make(out.text());
}

Result CountWords(Runtime& runtime, const Value& value, const Bound&) {
  ORCD_ASSIGN_OR_RETURN(const Text text, runtime.ToText(value));
  ORCD_RETURN_IF_ERROR(runtime.StepBytes(text.bytes.size() * 4));
  int64_t words = 0;
  bool in_word = false;
  for (size_t pos = 0; pos < text.bytes.size();) {
    const Utf8Char c = DecodeUtf8(text.bytes, pos);
    const bool is_word =
        c.codepoint == '_' || IsIn(kAlphabetic, c.codepoint) || IsIn(kNumeric, c.codepoint);
    words += is_word && !in_word ? 1 : 0;
    in_word = is_word;
    pos += c.length;
  }
  return Value::Int(words);
}

constexpr FilterRow kRows[] = {
    {"lower", {}, InCase<Case::kLower>},
    {"upper", {}, InCase<Case::kUpper>},
    {"capitalize", {}, CapitalizeText},
    {"title", {}, Title},
    {"trim", {{"chars"}}, Trim},
    {"replace", {{"old", "new", "count"}, 2}, ReplaceText},
    {"center", {{"width"}}, Center},
    {"indent", {{"width", "first", "blank"}}, Indent},
    {"truncate", {{"length", "killwords", "end", "leeway"}}, Truncate},
    {"string", {}, ToString},
    {"safe", {}, MarkSafe},
    {"e", {}, EscapeText<false>},
    {"escape", {}, EscapeText<false>},
    {"forceescape", {}, EscapeText<true>},
    {"format", {}, nullptr, Format},
    {"tojson", {{"ensure_ascii", "indent", "separators", "sort_keys"}}, ToJson},
    {"urlencode", {}, UrlEncode},
    {"wordcount", {}, CountWords},
};

}  // namespace

std::span<const FilterRow> TextFilters() { return kRows; }

const FilterRow* FindFilter(std::string_view name) {
  for (const auto rows : {TextFilters(), SequenceFilters(), NumberFilters()}) {
    const auto row = std::ranges::find(rows, name, &FilterRow::name);
    if (row != rows.end()) return &*row;
  }
  return nullptr;
}

}  // namespace orcd::jinja
