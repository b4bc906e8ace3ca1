// The global functions of templates.
#include <algorithm>
#include <limits>
#include <string>

#include "runtime/base/error.h"
#include "runtime/text/jinja/methods.h"
#include "runtime/text/jinja/time_format.h"

namespace orcd::jinja {
namespace {

using Result = absl::StatusOr<Value>;

// A longer range is refused, as by Jinja's sandbox.
constexpr int64_t kMaxRange = 100'000;
// In bytes.
constexpr size_t kMaxTimeFormat = 4096;

// The entries of a dictionary made of a mapping or of pairs, and of keywords.
absl::StatusOr<std::span<const DictEntry>> Entries(Runtime& runtime, const Arguments& arguments) {
  ArenaVector<DictEntry> entries(runtime.arena());
  const auto set = [&](const Value& key, const Value& value) -> absl::Status {
    for (DictEntry& entry : entries.items()) {
      ORCD_ASSIGN_OR_RETURN(const bool equal, runtime.Equal(entry.key, key));
      if (!equal) continue;
      entry.value = value;
      return absl::OkStatus();
    }
    entries.Add({key, value});
    return absl::OkStatus();
  };
  if (arguments.positional.size() > 1) return runtime.Fail("at most one argument is expected");
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.Is(Kind::kDict)) {
      for (const DictEntry& entry : source.dict().entries) entries.Add(entry);
    } else {
      ORCD_ASSIGN_OR_RETURN(const auto pairs, runtime.ToList(source));
      for (const Value& pair : pairs) {
        ORCD_ASSIGN_OR_RETURN(const auto parts, runtime.ToList(pair));
        if (parts.size() != 2) return runtime.Fail("a pair is expected as an entry");
        ORCD_RETURN_IF_ERROR(set(parts[0], parts[1]));
      }
    }
  }
  for (const Keyword& keyword : arguments.keywords) {
    ORCD_RETURN_IF_ERROR(set(runtime.MakeString(keyword.name, Origin::kTemplate), keyword.value));
  }
  return std::span<const DictEntry>(entries.items());
}

Result MakeDict(Runtime& runtime, const Value&, const Arguments& arguments) {
  ORCD_ASSIGN_OR_RETURN(const auto entries, Entries(runtime, arguments));
  return runtime.MakeDict(entries);
}

Result MakeNamespace(Runtime& runtime, const Value&, const Arguments& arguments) {
  ORCD_ASSIGN_OR_RETURN(const auto entries, Entries(runtime, arguments));
  auto* const made = runtime.arena().New<Namespace>(ArenaVector<Variable>(runtime.arena()));
  for (const DictEntry& entry : entries) {
    ORCD_ASSIGN_OR_RETURN(const Text name, runtime.String(entry.key));
    made->variables.Add({name.bytes, entry.value});
  }
  return Value(made);
}

Result MakeRange(Runtime& runtime, const Value&, const Bound& arguments) {
  int64_t numbers[3] = {0, 0, 1};
  for (size_t i = 0; i < 3; ++i) {
    if (!arguments.Has(i)) continue;
    ORCD_ASSIGN_OR_RETURN(numbers[i], runtime.Integer(arguments[i]));
  }
  if (!arguments.Has(1)) std::swap(numbers[0], numbers[1]);
  // The distance between two numbers fits into 64 bits.
  constexpr int64_t kFar = std::numeric_limits<int64_t>::max() / 4;
  for (const int64_t number : numbers) {
    if (number < -kFar || number > kFar) return runtime.Fail("a range takes more than 64 bits");
  }
  const Range range = {numbers[0], numbers[1], numbers[2]};
  if (range.step == 0) return runtime.Fail("range() arg 3 must not be zero");
  if (range.size() > kMaxRange) {
    return runtime.Fail("range() is longer than " + std::to_string(kMaxRange));
  }
  return Value(runtime.arena().New<Range>(range));
}

Result RaiseException(Runtime& runtime, const Value&, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const Text text, runtime.ToText(arguments[0]));
  return absl::InvalidArgumentError(absl::string_view(text.bytes.data(), text.bytes.size()));
}

Result StrftimeNow(Runtime& runtime, const Value&, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const Text format, runtime.String(arguments[0]));
  if (format.bytes.size() > kMaxTimeFormat) return runtime.Fail("a time's format is too long");
  ORCD_RETURN_IF_ERROR(runtime.Step(format.bytes.size() * 4));
  Context& context = runtime.context();
  return runtime.MakeString(FormatTime(format.bytes, context.now(), context.microseconds()));
}

const Function kFunctions[] = {
    {{}, "dict", {}, nullptr, MakeDict},
    {{}, "namespace", {}, nullptr, MakeNamespace},
    {{}, "range", {{"start", "stop", "step"}, 1}, MakeRange, nullptr},
    {{}, "raise_exception", {{"message"}, 1}, RaiseException, nullptr},
    {{}, "strftime_now", {{"format"}, 1}, StrftimeNow, nullptr},
};

}  // namespace

std::span<const Function> GlobalFunctions() { return kFunctions; }

}  // namespace orcd::jinja
