#include "runtime/text/jinja/runtime.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/text/jinja/characters.h"
#include "runtime/text/jinja/filters.h"
#include "runtime/text/jinja/format.h"
#include "runtime/text/jinja/methods.h"
#include "runtime/text/jinja/predicates.h"

namespace orcd::jinja {
namespace {

// In the order of Operator.
constexpr std::string_view kSigns[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};

std::string Cat(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) text.append(part);
  return text;
}

// An index of Python, which counts from the end if it is negative; nullopt if it is outside.
std::optional<int64_t> InRange(int64_t index, int64_t size) {
  if (index < 0) index += size;
  if (index < 0 || index >= size) return std::nullopt;
  return index;
}

// Exact for every integer and float.
long double Exact(const Value& value) {
  static_assert(std::numeric_limits<long double>::digits >= 64);
  return value.IsInteger() ? static_cast<long double>(value.integer()) : value.floating();
}

int64_t FloorDivide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

double FloorModulo(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

double FloorDivide(double a, double b) {
  const double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

}  // namespace

std::string_view TypeName(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
    case Kind::kBigInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return value.text().markup ? "Markup" : "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kDictView: {
      static constexpr std::string_view kNames[] = {"dict_keys", "dict_values", "dict_items"};
      return kNames[static_cast<int>(value.dict_view().of)];
    }
    case Kind::kRange:
      return "range";
    case Kind::kGenerator:
      return "generator";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kMacro:
      return "Macro";
    case Kind::kFunction:
      return "function";
  }
  return "object";
}

// --- Errors and bounds

absl::Status Runtime::Fail(std::string_view message) const {
  return absl::FailedPreconditionError(
      absl::StrCat("line ", line_, ": ", absl::string_view(message.data(), message.size())));
}

absl::Status Runtime::IntegerTooLarge() const { return Fail("an integer takes more than 64 bits"); }

absl::Status Runtime::TypeError(std::string_view wanted, const Value& found) const {
  if (!found.IsDefined()) {
    return Fail(found.undefined() == nullptr ? "a value is undefined" : found.undefined()->message);
  }
  return Fail(Cat({"'", TypeName(found), "' object ", wanted}));
}

absl::Status Runtime::Spent() const {
  if (context_.arena().exhausted()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("line ", line_, ": the chat template takes more than ", kMaxRenderBytes >> 20,
                     " MiB of memory for this conversation"));
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "line ", line_, ": the chat template takes too many steps for this conversation"));
}

absl::Status Runtime::TooDeep() const {
  return absl::ResourceExhaustedError(
      absl::StrCat("line ", line_, ": values or calls nest too deep"));
}

// --- Making values

Value Runtime::MakeString(std::string_view text, Origin origin) {
  TextBuilder copy(arena());
  copy.Append(text, origin);
  return Make(copy.text());
}

Value Runtime::MakeTuple(std::initializer_list<Value> items) {
  ArenaVector<Value> copy(arena());
  copy.Reserve(items.size());
  for (const Value& item : items) copy.Add(item);
  return Value(arena().New<Sequence>(Sequence{copy.items()}), true);
}

Value Runtime::MakeUndefined(std::string_view message) {
  return Value(arena().New<Undefined>(Undefined{MakeString(message).text().bytes}));
}

// --- Operations

bool Runtime::IsTrue(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.integer() != 0;
    case Kind::kFloat:
      return value.floating() != 0;
    case Kind::kString:
      return !value.text().bytes.empty();
    case Kind::kList:
    case Kind::kTuple:
      return !value.sequence().items.empty();
    case Kind::kDict:
      return !value.dict().entries.empty();
    case Kind::kDictView:
      return !value.dict_view().dict->entries.empty();
    case Kind::kRange:
      return value.range().size() > 0;
    default:
      return true;
  }
}

absl::StatusOr<bool> Runtime::Equal(const Value& a, const Value& b, int depth) {
  ORCD_RETURN_IF_ERROR(Step());
  if (depth > kMaxValueDepth) return TooDeep();
  if (a.IsNumber() && b.IsNumber()) {
    return Exact(a) == Exact(b);
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kBigInt:
    case Kind::kString:
      if (a.text().bytes.size() != b.text().bytes.size()) return false;
      ORCD_RETURN_IF_ERROR(StepBytes(a.text().bytes.size()));
      return a.text().bytes == b.text().bytes;
    case Kind::kList:
    case Kind::kTuple: {
      const auto left = a.sequence().items;
      const auto right = b.sequence().items;
      if (left.size() != right.size()) return false;
      for (size_t i = 0; i < left.size(); ++i) {
        ORCD_ASSIGN_OR_RETURN(const bool equal, Equal(left[i], right[i], depth + 1));
        if (!equal) return false;
      }
      return true;
    }
    case Kind::kDict: {
      if (a.dict().entries.size() != b.dict().entries.size()) return false;
      for (const DictEntry& entry : a.dict().entries) {
        bool found = false;
        for (const DictEntry& other : b.dict().entries) {
          ORCD_ASSIGN_OR_RETURN(const bool same_key, Equal(entry.key, other.key, depth + 1));
          if (!same_key) continue;
          ORCD_ASSIGN_OR_RETURN(found, Equal(entry.value, other.value, depth + 1));
          break;
        }
        if (!found) return false;
      }
      return true;
    }
    case Kind::kDictView: {
      // Keys and items are sets; values are equal to nothing else.
      const DictView& left = a.dict_view();
      const DictView& right = b.dict_view();
      if (left.of != right.of || left.of == DictView::Of::kValues) break;
      ORCD_ASSIGN_OR_RETURN(const auto items, ToList(a));
      if (items.size() != right.dict->entries.size()) return false;
      for (const Value& item : items) {
        ORCD_ASSIGN_OR_RETURN(const bool contains, Contains(b, item));
        if (!contains) return false;
      }
      return true;
    }
    case Kind::kRange: {
      const Range& left = a.range();
      const Range& right = b.range();
      const int64_t size = left.size();
      return size == right.size() && (size == 0 || left.begin == right.begin) &&
             (size <= 1 || left.step == right.step);
    }
    case Kind::kFunction:
      return a.function().call == b.function().call &&
             a.function().call_with_arguments == b.function().call_with_arguments &&
             a.function().object.identity() == b.function().object.identity();
    default:
      break;
  }
  return a.identity() == b.identity();
}

absl::StatusOr<bool> Runtime::Less(const Value& a, const Value& b, std::string_view sign,
                                   int depth) {
  ORCD_RETURN_IF_ERROR(Step());
  if (depth > kMaxValueDepth) return TooDeep();
  if (a.IsNumber() && b.IsNumber()) {
    return Exact(a) < Exact(b);
  }
  if (a.Is(Kind::kString) && b.Is(Kind::kString)) {
    ORCD_RETURN_IF_ERROR(StepBytes(std::min(a.text().bytes.size(), b.text().bytes.size())));
    return a.text().bytes < b.text().bytes;
  }
  if (a.IsSequence() && a.kind() == b.kind()) {
    const auto left = a.sequence().items;
    const auto right = b.sequence().items;
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      ORCD_ASSIGN_OR_RETURN(const bool equal, Equal(left[i], right[i], depth + 1));
      if (!equal) return Less(left[i], right[i], sign, depth + 1);
    }
    return left.size() < right.size();
  }
  if (!a.IsDefined()) return TypeError("", a);
  if (!b.IsDefined()) return TypeError("", b);
  return Fail(Cat({"'", sign, "' not supported between instances of '", TypeName(a), "' and '",
                   TypeName(b), "'"}));
}

absl::StatusOr<bool> Runtime::Contains(const Value& container, const Value& item) {
  if (container.Is(Kind::kString)) {
    if (!item.Is(Kind::kString)) {
      return Fail(Cat({"'in <string>' requires string as left operand, not ", TypeName(item)}));
    }
    ORCD_RETURN_IF_ERROR(StepBytes(container.text().bytes.size()));
    return FindFirst(container.text().bytes, item.text().bytes) != std::string_view::npos;
  }
  if (container.Is(Kind::kDict) && (item.Is(Kind::kList) || item.Is(Kind::kDict))) {
    return TypeError("is unhashable", item);
  }
  if (container.Is(Kind::kDict) && item.Is(Kind::kString)) {
    ORCD_ASSIGN_OR_RETURN(const Value* found, Find(container.dict(), item.text().bytes));
    return found != nullptr;
  }
  if (container.IsDefined() && !container.IsSequence() && !container.Is(Kind::kDict) &&
      !container.Is(Kind::kDictView) && !container.Is(Kind::kRange) &&
      !container.Is(Kind::kGenerator)) {
    return Fail(Cat({"argument of type '", TypeName(container), "' is not iterable"}));
  }
  ORCD_ASSIGN_OR_RETURN(Iterator iterator, Iterate(container));
  for (Value candidate;;) {
    ORCD_ASSIGN_OR_RETURN(const bool has_next, Next(iterator, candidate));
    if (!has_next) return false;
    ORCD_ASSIGN_OR_RETURN(const bool equal, Equal(candidate, item));
    if (equal) return true;
  }
}

absl::StatusOr<Value> Runtime::ApplyToNumbers(Operator op, const Value& a, const Value& b) {
  const bool divides =
      op == Operator::kDivide || op == Operator::kFloorDivide || op == Operator::kModulo;
  if (divides && b.number() == 0) return Fail("division by zero");
  if (a.IsInteger() && b.IsInteger() && op != Operator::kDivide) {
    const int64_t x = a.integer();
    const int64_t y = b.integer();
    int64_t result = 0;
    bool overflows = false;
    switch (op) {
      case Operator::kAdd:
        overflows = __builtin_add_overflow(x, y, &result);
        break;
      case Operator::kSubtract:
        overflows = __builtin_sub_overflow(x, y, &result);
        break;
      case Operator::kMultiply:
        overflows = __builtin_mul_overflow(x, y, &result);
        break;
      case Operator::kFloorDivide:
        overflows = y == -1 && __builtin_sub_overflow(int64_t{0}, x, &result);
        if (y != -1) result = FloorDivide(x, y);
        break;
      case Operator::kModulo:
        result = y == -1 ? 0 : x - FloorDivide(x, y) * y;
        break;
      default:
        if (y < 0) return ApplyToNumbers(op, Value::Float(static_cast<double>(x)), b);
        result = 1;
        // Another factor than these overflows after 63.
        for (int64_t i = 0; i < ((x >= -1 && x <= 1) ? std::min(y, 2 - y % 2) : y) && !overflows;
             ++i) {
          overflows = __builtin_mul_overflow(result, x, &result);
        }
        break;
    }
    if (overflows) return IntegerTooLarge();
    return Value::Int(result);
  }
  if (op == Operator::kDivide && a.IsInteger() && b.IsInteger()) {
    return Value::Float(static_cast<double>(Exact(a) / Exact(b)));
  }
  const double x = a.number();
  const double y = b.number();
  switch (op) {
    case Operator::kAdd:
      return Value::Float(x + y);
    case Operator::kSubtract:
      return Value::Float(x - y);
    case Operator::kMultiply:
      return Value::Float(x * y);
    case Operator::kDivide:
      return Value::Float(x / y);
    case Operator::kFloorDivide:
      return Value::Float(FloorDivide(x, y));
    case Operator::kModulo:
      return Value::Float(FloorModulo(x, y));
    default: {
      if (x == 0 && y < 0) return Fail("0.0 cannot be raised to a negative power");
      const double result = std::pow(x, y);
      if (std::isnan(result) && !std::isnan(x) && !std::isnan(y)) {
        return Fail("complex numbers are not supported");
      }
      if (std::isinf(result) && std::isfinite(x) && std::isfinite(y)) {
        return Fail("a number is too large");
      }
      return Value::Float(result);
    }
  }
}

absl::StatusOr<Value> Runtime::Apply(Operator op, const Value& a, const Value& b) {
  if (a.IsNumber() && b.IsNumber()) return ApplyToNumbers(op, a, b);
  if (a.Is(Kind::kString) && op == Operator::kModulo) return FormatPercent(*this, a.text(), b);
  if (!a.IsDefined()) return TypeError("", a);
  if (!b.IsDefined()) return TypeError("", b);
  if (op == Operator::kAdd) {
    if (a.Is(Kind::kString) && b.Is(Kind::kString)) {
      ORCD_ASSIGN_OR_RETURN(const Text text, Concatenate(a.text(), b.text()));
      return Make(text);
    }
    if (a.IsSequence() && a.kind() == b.kind()) {
      const auto left = a.sequence().items;
      const auto right = b.sequence().items;
      ORCD_RETURN_IF_ERROR(Step(left.size() + right.size()));
      ArenaVector<Value> items(arena());
      items.Reserve(left.size() + right.size());
      for (const Value& item : left) items.Add(item);
      for (const Value& item : right) items.Add(item);
      return Value(arena().New<Sequence>(Sequence{items.items()}), a.Is(Kind::kTuple));
    }
    if (a.Is(Kind::kString) || a.IsSequence()) {
      const std::string_view type = TypeName(a);
      return Fail(Cat({"can only concatenate ", type, " (not \"", TypeName(b), "\") to ", type}));
    }
  }
  if (op == Operator::kMultiply) {
    const bool b_counts = b.IsInteger();
    const Value& repeated = b_counts ? a : b;
    const Value& count = b_counts ? b : a;
    if (count.IsInteger() && repeated.Is(Kind::kString)) {
      ORCD_ASSIGN_OR_RETURN(const Text text, Repeat(repeated.text(), count.integer()));
      return Make(text);
    }
    if (count.IsInteger() && repeated.IsSequence()) {
      const auto items = repeated.sequence().items;
      const int64_t times = items.empty() ? 0 : std::max<int64_t>(0, count.integer());
      if (times > kMaxSteps) return Step(kMaxSteps + 1);
      ORCD_RETURN_IF_ERROR(Step(times * items.size()));
      ArenaVector<Value> result(arena());
      result.Reserve(times * items.size());
      for (int64_t i = 0; i < times; ++i) {
        for (const Value& item : items) result.Add(item);
      }
      return Value(arena().New<Sequence>(Sequence{result.items()}), repeated.Is(Kind::kTuple));
    }
  }
  return Fail(Cat({"unsupported operand type(s) for ", kSigns[static_cast<int>(op)], ": '",
                   TypeName(a), "' and '", TypeName(b), "'"}));
}

absl::StatusOr<Value> Runtime::Negate(const Value& value) {
  if (value.Is(Kind::kFloat)) return Value::Float(-value.floating());
  if (value.IsInteger()) return ApplyToNumbers(Operator::kSubtract, Value::Int(0), value);
  return TypeError("is a bad operand for unary -", value);
}

absl::StatusOr<int64_t> Runtime::Length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      ORCD_RETURN_IF_ERROR(StepBytes(value.text().bytes.size()));
      return CountCharacters(value.text().bytes);
    case Kind::kList:
    case Kind::kTuple:
      return value.sequence().items.size();
    case Kind::kDict:
      return value.dict().entries.size();
    case Kind::kDictView:
      return value.dict_view().dict->entries.size();
    case Kind::kRange:
      return value.range().size();
    case Kind::kLoop: {
      ORCD_ASSIGN_OR_RETURN(const Value length, GetLoopAttribute(value.loop(), "length"));
      return length.integer();
    }
    default:
      return Fail(Cat({"object of type '", TypeName(value), "' has no len()"}));
  }
}

absl::StatusOr<int64_t> Runtime::Integer(const Value& value) const {
  if (value.IsInteger()) return value.integer();
  return TypeError("cannot be interpreted as an integer", value);
}

absl::StatusOr<Text> Runtime::String(const Value& value) const {
  if (value.Is(Kind::kString)) return value.text();
  return TypeError("is no string", value);
}

absl::StatusOr<Text> Runtime::ToText(const Value& value) {
  if (value.Is(Kind::kString)) return value.text();
  if (!value.IsDefined()) return Text();
  TextBuilder text(arena());
  ORCD_RETURN_IF_ERROR(AppendRepr(value, text));
  return text.text();
}

absl::StatusOr<Text> Runtime::Concatenate(const Text& a, const Text& b) {
  if (a.markup || b.markup) {
    TextBuilder joined(arena());
    joined.AppendEscaped(a);
    joined.AppendEscaped(b);
    ORCD_RETURN_IF_ERROR(StepBytes(joined.size()));
    Text text = joined.text();
    text.markup = true;
    return text;
  }
  auto accumulator = std::ranges::find_if(accumulators_, [&](const TextBuilder& builder) {
    const std::string_view last = builder.text().bytes;
    return last.data() == a.bytes.data() && last.size() == a.bytes.size();
  });
  if (accumulator == accumulators_.end()) {
    ORCD_RETURN_IF_ERROR(StepBytes(a.bytes.size()));
    // Long results are kept, because to copy them costs most.
    accumulator = std::ranges::min_element(accumulators_, {}, &TextBuilder::size);
    *accumulator = TextBuilder(arena());
    accumulator->Reserve(a.bytes.size() + b.bytes.size());
    accumulator->Append(a);
  }
  ORCD_RETURN_IF_ERROR(StepBytes(b.bytes.size()));
  accumulator->Append(b);
  return accumulator->text();
}

absl::StatusOr<Text> Runtime::Repeat(const Text& text, int64_t count) {
  const size_t bytes = text.bytes.size();
  if (count <= 0 || bytes == 0) return text.Sub(0, 0);
  if (count > static_cast<int64_t>(kMaxRenderBytes / bytes)) return Step(kMaxSteps + 1);
  ORCD_RETURN_IF_ERROR(Step(count + count * bytes / kBytesPerStep));
  TextBuilder repeated(arena());
  repeated.Reserve(count * bytes);
  for (int64_t i = 0; i < count; ++i) repeated.Append(text);
  Text result = repeated.text();
  result.markup = text.markup;
  return result;
}

// --- Access

absl::StatusOr<const Value*> Runtime::Find(const Dict& dict, std::string_view key) {
  ORCD_RETURN_IF_ERROR(Step(dict.entries.size() / 8 + key.size() / kBytesPerStep));
  for (const DictEntry& entry : dict.entries) {
    if (entry.key.Is(Kind::kString) && entry.key.text().bytes == key) return &entry.value;
  }
  return nullptr;
}

absl::StatusOr<Value> Runtime::GetAttribute(const Value& object, std::string_view name) {
  switch (object.kind()) {
    case Kind::kUndefined:
      return TypeError("", object);
    case Kind::kNamespace: {
      const auto variables = object.name_space().variables.items();
      ORCD_RETURN_IF_ERROR(Step(variables.size() / 8));
      for (const Variable& variable : variables) {
        if (variable.name == name) return variable.value;
      }
      break;
    }
    case Kind::kLoop:
      return GetLoopAttribute(object.loop(), name);
    case Kind::kTuple:
      if (object.sequence().is_group && (name == "grouper" || name == "list")) {
        return object.sequence().items[name == "list" ? 1 : 0];
      }
      break;
    case Kind::kMacro:
      if (name == "name") return MakeString(object.macro().body->name);
      break;
    default:
      break;
  }
  if (const std::optional<Value> method = FindMethod(*this, object, name)) return *method;
  if (object.Is(Kind::kDict)) {
    ORCD_ASSIGN_OR_RETURN(const Value* found, Find(object.dict(), name));
    if (found != nullptr) return *found;
  }
  const std::string_view type = object.Is(Kind::kNone) ? "None" : TypeName(object);
  return MakeUndefined(
      Cat({"'", type, object.Is(Kind::kNone) ? "" : " object", "' has no attribute '", name, "'"}));
}

absl::StatusOr<Value> Runtime::GetItem(const Value& object, const Value& key) {
  if (!object.IsDefined()) return TypeError("", object);
  if (object.Is(Kind::kDict)) {
    if (key.Is(Kind::kString)) {
      ORCD_ASSIGN_OR_RETURN(const Value* found, Find(object.dict(), key.text().bytes));
      if (found != nullptr) return *found;
    } else if (key.IsNumber() || key.Is(Kind::kNone) || key.Is(Kind::kTuple)) {
      for (const DictEntry& entry : object.dict().entries) {
        ORCD_ASSIGN_OR_RETURN(const bool equal, Equal(entry.key, key));
        if (equal) return entry.value;
      }
    }
  } else if (key.IsInteger()) {
    if (object.IsSequence()) {
      const auto items = object.sequence().items;
      if (const auto index = InRange(key.integer(), items.size())) return items[*index];
    } else if (object.Is(Kind::kRange)) {
      const Range& range = object.range();
      if (const auto index = InRange(key.integer(), range.size())) {
        return Value::Int(range.begin + *index * range.step);
      }
    } else if (object.Is(Kind::kString)) {
      ORCD_ASSIGN_OR_RETURN(const int64_t size, Length(object));
      if (const auto index = InRange(key.integer(), size)) {
        const Text& text = object.text();
        const size_t pos = PositionOf(text.bytes, *index);
        return Make(text.Sub(pos, CharacterLength(text.bytes, pos)));
      }
    }
  }
  if (key.Is(Kind::kString)) return GetAttribute(object, key.text().bytes);
  TextBuilder message(arena());
  message.Append(object.Is(Kind::kNone) ? "None" : Cat({TypeName(object), " object"}));
  message.Append(" has no element ");
  ORCD_RETURN_IF_ERROR(AppendRepr(key, message));
  return MakeUndefined(message.text().bytes);
}

absl::StatusOr<Value> Runtime::GetSlice(const Value& object, const Value* begin, const Value* end,
                                        const Value* step) {
  if (!object.IsDefined()) return TypeError("", object);
  if (!object.Is(Kind::kString) && !object.IsSequence() && !object.Is(Kind::kRange)) {
    return TypeError("has no slices", object);
  }
  const auto number = [&](const Value* part, int64_t otherwise) -> absl::StatusOr<int64_t> {
    if (part == nullptr || part->Is(Kind::kNone)) return otherwise;
    if (part->IsInteger()) return part->integer();
    return Fail("slice indices must be integers or None");
  };
  ORCD_ASSIGN_OR_RETURN(const int64_t size, Length(object));
  ORCD_ASSIGN_OR_RETURN(const int64_t by, number(step, 1));
  if (by == 0) return Fail("slice step cannot be zero");
  const auto clamp = [&](int64_t index) {
    if (index < 0) index = index < -size ? -1 : index + size;
    return by > 0 ? std::clamp<int64_t>(index, 0, size) : std::clamp<int64_t>(index, -1, size - 1);
  };
  ORCD_ASSIGN_OR_RETURN(const int64_t first, number(begin, by > 0 ? 0 : INT64_MAX));
  const bool to_end = end == nullptr || end->Is(Kind::kNone);
  ORCD_ASSIGN_OR_RETURN(const int64_t last, number(end, 0));
  const int64_t from = clamp(first);
  const int64_t to = !to_end ? clamp(last) : by > 0 ? size : -1;
  const Range indices = {from, to, by > size ? size + 1 : by < -size ? -size - 1 : by};
  const int64_t count = indices.size();

  if (object.Is(Kind::kString)) {
    const Text& text = object.text();
    const size_t begins = PositionOf(text.bytes, std::max<int64_t>(0, from));
    if (by == 1) {
      const size_t length = PositionOf(text.bytes.substr(begins), count);
      return Make(text.Sub(begins, length));
    }
    // Positions of all characters, as a step may go anywhere.
    ORCD_RETURN_IF_ERROR(Step(size));
    ArenaVector<uint32_t> positions(arena());
    positions.Reserve(size);
    for (size_t pos = 0; pos < text.bytes.size(); pos += CharacterLength(text.bytes, pos)) {
      positions.Add(static_cast<uint32_t>(pos));
    }
    if (positions.size() < static_cast<size_t>(size)) return Step();
    TextBuilder sliced(arena());
    for (int64_t i = 0; i < count; ++i) {
      const size_t pos = positions[from + i * indices.step];
      sliced.Append(text.Sub(pos, CharacterLength(text.bytes, pos)));
    }
    Text result = sliced.text();
    result.markup = text.markup;
    return Make(result);
  }
  if (object.Is(Kind::kRange)) {
    const Range& range = object.range();
    Range sliced = {};
    const auto scale = [&](int64_t index, int64_t add, int64_t& result) {
      int64_t product = 0;
      return __builtin_mul_overflow(index, range.step, &product) ||
             __builtin_add_overflow(add, product, &result);
    };
    if (scale(from, range.begin, sliced.begin) || scale(to, range.begin, sliced.end) ||
        scale(by, 0, sliced.step)) {
      return IntegerTooLarge();
    }
    return Value(arena().New<Range>(sliced));
  }
  const auto items = object.sequence().items;
  if (by == 1) {
    return Value(arena().New<Sequence>(Sequence{items.subspan(from, count)}),
                 object.Is(Kind::kTuple));
  }
  ORCD_RETURN_IF_ERROR(Step(count));
  ArenaVector<Value> sliced(arena());
  sliced.Reserve(count);
  for (int64_t i = 0; i < count; ++i) sliced.Add(items[from + i * indices.step]);
  return Value(arena().New<Sequence>(Sequence{sliced.items()}), object.Is(Kind::kTuple));
}

absl::StatusOr<Value> Runtime::GetPath(const Value& object, const Value& path,
                                       const Value& fallback) {
  if (path.Is(Kind::kNone)) return object;
  if (!path.Is(Kind::kString)) {
    ORCD_ASSIGN_OR_RETURN(const Value item, GetItem(object, path));
    return !item.IsDefined() && fallback.IsDefined() ? fallback : item;
  }
  std::string_view rest = path.text().bytes;
  Value value = object;
  while (true) {
    const size_t point = rest.find('.');
    const std::string_view part = rest.substr(0, point);
    ORCD_RETURN_IF_ERROR(Step());
    const bool is_index =
        !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    int64_t index = 0;
    if (is_index) std::from_chars(part.data(), part.data() + part.size(), index);
    const Text name = {part};
    ORCD_ASSIGN_OR_RETURN(value, GetItem(value, is_index ? Value::Int(index) : Value(&name)));
    if (!value.IsDefined() && fallback.IsDefined()) value = fallback;
    if (point == std::string_view::npos) return value;
    rest.remove_prefix(point + 1);
  }
}

// --- Iteration

absl::StatusOr<Iterator> Runtime::Iterate(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kDictView:
    case Kind::kRange:
    case Kind::kGenerator:
      return Iterator{value};
    default:
      return TypeError("is not iterable", value);
  }
}

absl::StatusOr<bool> Runtime::Next(Iterator& iterator, Value& item) {
  ORCD_RETURN_IF_ERROR(Step());
  const Value& source = iterator.source;
  size_t& next = iterator.next;
  switch (source.kind()) {
    case Kind::kString: {
      const Text& text = source.text();
      if (next >= text.bytes.size()) return false;
      const size_t length = CharacterLength(text.bytes, next);
      // The characters of Markup are plain texts.
      item = Make({text.bytes.substr(next, length), text.Sub(next, length).origins, text.origin});
      next += length;
      return true;
    }
    case Kind::kList:
    case Kind::kTuple:
      if (next >= source.sequence().items.size()) return false;
      item = source.sequence().items[next++];
      return true;
    case Kind::kDict:
      if (next >= source.dict().entries.size()) return false;
      item = source.dict().entries[next++].key;
      return true;
    case Kind::kDictView: {
      const DictView& view = source.dict_view();
      if (next >= view.dict->entries.size()) return false;
      const DictEntry& entry = view.dict->entries[next++];
      item = view.of == DictView::Of::kKeys     ? entry.key
             : view.of == DictView::Of::kValues ? entry.value
                                                : MakeTuple({entry.key, entry.value});
      return true;
    }
    case Kind::kRange:
      if (static_cast<int64_t>(next) >= source.range().size()) return false;
      item = Value::Int(source.range().begin + static_cast<int64_t>(next++) * source.range().step);
      return true;
    case Kind::kGenerator: {
      bool found = false;
      ORCD_ASSIGN_OR_RETURN(item, NextOfGenerator(source.generator(), found));
      return found;
    }
    default:
      return false;
  }
}

absl::StatusOr<Value> Runtime::NextOfGenerator(Generator& generator, bool& found) {
  const Level level(depth_);
  if (depth_ > kMaxCallDepth) return TooDeep();
  for (Value item;;) {
    ORCD_ASSIGN_OR_RETURN(found, Next(generator.source, item));
    if (!found) return Value();
    switch (generator.type) {
      case Generator::Type::kItems:
        return item;
      case Generator::Type::kMap:
        return ApplyFilter(*generator.filter, item, generator.arguments);
      case Generator::Type::kMapAttribute:
        return GetPath(item, generator.attribute, generator.fallback);
      case Generator::Type::kSelect:
        break;
    }
    Value tested = item;
    if (generator.attribute.IsDefined()) {
      ORCD_ASSIGN_OR_RETURN(tested, GetPath(item, generator.attribute));
    }
    bool holds = IsTrue(tested);
    if (generator.predicate != nullptr) {
      ORCD_ASSIGN_OR_RETURN(holds,
                            ApplyPredicate(*generator.predicate, tested, generator.arguments));
    }
    if (holds == generator.selects) return item;
  }
}

absl::StatusOr<std::span<const Value>> Runtime::ToList(const Value& value) {
  if (value.IsSequence()) return value.sequence().items;
  ORCD_ASSIGN_OR_RETURN(Iterator iterator, Iterate(value));
  ArenaVector<Value> items(arena());
  for (Value item;;) {
    ORCD_ASSIGN_OR_RETURN(const bool has_next, Next(iterator, item));
    if (!has_next) return std::span<const Value>(items.items());
    items.Add(item);
  }
}

absl::StatusOr<std::span<const size_t>> Runtime::SortedOrder(std::span<const Value> keys,
                                                             bool descending) {
  ArenaVector<size_t> order(arena());
  order.Reserve(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) order.Add(i);
  absl::Status error;
  // A merge sort ends whatever the comparison says, and an error makes it cheap.
  std::stable_sort(order.items().begin(), order.items().end(), [&](size_t a, size_t b) {
    if (!error.ok()) return false;
    const absl::StatusOr<bool> less = descending ? Less(keys[b], keys[a]) : Less(keys[a], keys[b]);
    if (!less.ok()) error = less.status();
    return less.ok() && *less;
  });
  ORCD_RETURN_IF_ERROR(error);
  return std::span<const size_t>(order.items());
}

// --- Calls

absl::StatusOr<Value> Runtime::ApplyFilter(const FilterRow& row, const Value& value,
                                           const Arguments& arguments) {
  ORCD_RETURN_IF_ERROR(Step());
  if (row.apply == nullptr) return row.apply_to_arguments(*this, value, arguments);
  ORCD_ASSIGN_OR_RETURN(const Bound bound, Bind(*this, row.name, row.parameters, arguments));
  return row.apply(*this, value, bound);
}

absl::StatusOr<bool> Runtime::ApplyPredicate(const PredicateRow& row, const Value& value,
                                             const Arguments& arguments) {
  ORCD_RETURN_IF_ERROR(Step());
  ORCD_ASSIGN_OR_RETURN(const Bound bound, Bind(*this, row.name, row.parameters, arguments));
  return row.holds(*this, value, bound);
}

}  // namespace orcd::jinja
