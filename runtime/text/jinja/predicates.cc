#include "runtime/text/jinja/predicates.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/text/jinja/filters.h"
#include "runtime/text/jinja/methods.h"
#include "runtime/text/jinja/runtime.h"

namespace orcd::jinja {
namespace {

using Result = absl::StatusOr<bool>;

template <Kind... kKinds>
Result IsKind(Runtime&, const Value& value, const Bound&) {
  return (value.Is(kKinds) || ...);
}

template <bool kWanted>
Result IsBoolean(Runtime&, const Value& value, const Bound&) {
  return value.Is(Kind::kBool) && value.boolean() == kWanted;
}

Result IsDefined(Runtime&, const Value& value, const Bound&) { return value.IsDefined(); }
Result IsUndefined(Runtime&, const Value& value, const Bound&) { return !value.IsDefined(); }

Result IsNumber(Runtime&, const Value& value, const Bound&) {
  return value.IsNumber() || value.Is(Kind::kBigInt);
}

Result IsEscaped(Runtime&, const Value& value, const Bound&) {
  return value.Is(Kind::kString) && value.text().markup;
}

// The remainder after division: 0, 1 or 2 for anything else, such as what `%` makes of a string.
absl::StatusOr<int64_t> Remainder(Runtime& runtime, const Value& value, const Value& by) {
  ORCD_ASSIGN_OR_RETURN(const Value rest, runtime.Apply(Operator::kModulo, value, by));
  if (!rest.IsNumber()) return 2;
  return rest.number() == 0 ? 0 : rest.number() == 1 ? 1 : 2;
}

Result IsOdd(Runtime& runtime, const Value& value, const Bound&) {
  ORCD_ASSIGN_OR_RETURN(const int64_t rest, Remainder(runtime, value, Value::Int(2)));
  return rest == 1;
}
Result IsEven(Runtime& runtime, const Value& value, const Bound&) {
  ORCD_ASSIGN_OR_RETURN(const int64_t rest, Remainder(runtime, value, Value::Int(2)));
  return rest == 0;
}
Result IsDivisible(Runtime& runtime, const Value& value, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const int64_t rest, Remainder(runtime, value, arguments[0]));
  return rest == 0;
}

template <bool kUpper>
Result IsInCase(Runtime& runtime, const Value& value, const Bound&) {
  ORCD_ASSIGN_OR_RETURN(const Text text, runtime.ToText(value));
  const auto name = kUpper ? "isupper" : "islower";
  const auto method = std::ranges::find(StringMethods(), name, &Function::name);
  ORCD_ASSIGN_OR_RETURN(const Value holds, method->call(runtime, runtime.Make(text), {}));
  return holds.boolean();
}

Result IsSame(Runtime&, const Value& value, const Bound& arguments) {
  const Value& other = arguments[0];
  if (value.kind() != other.kind()) return false;
  if (value.Is(Kind::kFloat)) return value.floating() == other.floating();
  if (value.IsInteger()) return value.integer() == other.integer();
  return value.Is(Kind::kNone) || value.identity() == other.identity();
}

Result IsEqual(Runtime& runtime, const Value& value, const Bound& arguments) {
  return runtime.Equal(value, arguments[0]);
}
Result IsNotEqual(Runtime& runtime, const Value& value, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const bool equal, runtime.Equal(value, arguments[0]));
  return !equal;
}
Result IsLess(Runtime& runtime, const Value& value, const Bound& arguments) {
  return runtime.Less(value, arguments[0]);
}
Result IsGreater(Runtime& runtime, const Value& value, const Bound& arguments) {
  return runtime.Less(arguments[0], value, ">");
}
Result IsLessOrEqual(Runtime& runtime, const Value& value, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const bool less, runtime.Less(value, arguments[0], "<="));
  return less ? Result(true) : runtime.Equal(value, arguments[0]);
}
Result IsGreaterOrEqual(Runtime& runtime, const Value& value, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const bool greater, runtime.Less(arguments[0], value, ">="));
  return greater ? Result(true) : runtime.Equal(value, arguments[0]);
}
Result IsContained(Runtime& runtime, const Value& value, const Bound& arguments) {
  return runtime.Contains(arguments[0], value);
}

template <typename Row, const Row* (*kFind)(std::string_view)>
Result IsNameOf(Runtime&, const Value& value, const Bound&) {
  return value.Is(Kind::kString) && kFind(value.text().bytes) != nullptr;
}

constexpr Parameters kOther = {{"other"}, 1};

constexpr PredicateRow kRows[] = {
    {"defined", {}, IsDefined},
    {"undefined", {}, IsUndefined},
    {"none", {}, IsKind<Kind::kNone>},
    {"boolean", {}, IsKind<Kind::kBool>},
    {"true", {}, IsBoolean<true>},
    {"false", {}, IsBoolean<false>},
    {"integer", {}, IsKind<Kind::kInt, Kind::kBigInt>},
    {"float", {}, IsKind<Kind::kFloat>},
    {"number", {}, IsNumber},
    {"string", {}, IsKind<Kind::kString>},
    {"mapping", {}, IsKind<Kind::kDict>},
    // Python finds the methods of sequences in an undefined value, too.
    {"sequence",
     {},
     IsKind<Kind::kString, Kind::kList, Kind::kTuple, Kind::kDict, Kind::kRange, Kind::kUndefined>},
    {"iterable",
     {},
     IsKind<Kind::kString, Kind::kList, Kind::kTuple, Kind::kDict, Kind::kRange, Kind::kDictView,
            Kind::kGenerator, Kind::kLoop, Kind::kUndefined>},
    {"callable", {}, IsKind<Kind::kMacro, Kind::kFunction, Kind::kLoop, Kind::kUndefined>},
    {"escaped", {}, IsEscaped},
    {"odd", {}, IsOdd},
    {"even", {}, IsEven},
    {"divisibleby", {{"num"}, 1}, IsDivisible},
    {"lower", {}, IsInCase<false>},
    {"upper", {}, IsInCase<true>},
    {"sameas", kOther, IsSame},
    {"eq", kOther, IsEqual},
    {"equalto", kOther, IsEqual},
    {"==", kOther, IsEqual},
    {"ne", kOther, IsNotEqual},
    {"!=", kOther, IsNotEqual},
    {"lt", kOther, IsLess},
    {"lessthan", kOther, IsLess},
    {"<", kOther, IsLess},
    {"le", kOther, IsLessOrEqual},
    {"<=", kOther, IsLessOrEqual},
    {"gt", kOther, IsGreater},
    {"greaterthan", kOther, IsGreater},
    {">", kOther, IsGreater},
    {"ge", kOther, IsGreaterOrEqual},
    {">=", kOther, IsGreaterOrEqual},
    {"in", {{"seq"}, 1}, IsContained},
    {"filter", {}, IsNameOf<FilterRow, FindFilter>},
    {"test", {}, IsNameOf<PredicateRow, FindPredicate>},
};

}  // namespace

const PredicateRow* FindPredicate(std::string_view name) {
  const auto* const row = std::ranges::find(kRows, name, &PredicateRow::name);
  return row == std::end(kRows) ? nullptr : row;
}

}  // namespace orcd::jinja
