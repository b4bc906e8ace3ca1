// Methods of lists, tuples and dictionaries, and the look-up of all methods.
#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/text/jinja/methods.h"

namespace orcd::jinja {
namespace {

using Result = absl::StatusOr<Value>;

template <DictView::Of kOf>
Result View(Runtime& runtime, const Value& object, const Bound&) {
  return Value(runtime.arena().New<DictView>(DictView{&object.dict(), kOf}));
}

Result Get(Runtime& runtime, const Value& object, const Bound& arguments) {
  if (arguments[0].Is(Kind::kList) || arguments[0].Is(Kind::kDict)) {
    return runtime.TypeError("is unhashable", arguments[0]);
  }
  for (const DictEntry& entry : object.dict().entries) {
    ORCD_ASSIGN_OR_RETURN(const bool equal, runtime.Equal(entry.key, arguments[0]));
    if (equal) return entry.value;
  }
  return arguments.Or(1, Value::None());
}

Result Copy(Runtime&, const Value& object, const Bound&) { return object; }

// list.count, or list.index.
template <bool kCounts>
Result Search(Runtime& runtime, const Value& object, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const auto items, runtime.ToList(object));
  int64_t count = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    ORCD_ASSIGN_OR_RETURN(const bool equal, runtime.Equal(items[i], arguments[0]));
    if (equal && !kCounts) return Value::Int(static_cast<int64_t>(i));
    count += equal ? 1 : 0;
  }
  if (!kCounts) return runtime.Fail("the value is not in the list");
  return Value::Int(count);
}

// The first three are those of dictionaries.
const Function kMethods[] = {
    {{}, "keys", {}, View<DictView::Of::kKeys>, nullptr},
    {{}, "values", {}, View<DictView::Of::kValues>, nullptr},
    {{}, "items", {}, View<DictView::Of::kItems>, nullptr},
    {{}, "get", {{"key", "default"}, 1}, Get, nullptr},
    {{}, "copy", {}, Copy, nullptr},
    {{}, "index", {{"value"}, 1}, Search<false>, nullptr},
    {{}, "count", {{"value"}, 1}, Search<true>, nullptr},
};
constexpr size_t kDictMethods = 5;

constexpr std::string_view kUnsafeOfDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view kUnsafeOfList[] = {"append", "clear",   "extend", "insert",
                                              "pop",    "reverse", "remove", "sort"};

std::span<const Function> MethodsOf(const Value& object) {
  const std::span<const Function> methods = kMethods;
  switch (object.kind()) {
    case Kind::kString:
      return StringMethods();
    case Kind::kDict:
      return methods.first(kDictMethods);
    case Kind::kList:
      return methods.subspan(kDictMethods - 1);
    case Kind::kTuple:
    case Kind::kRange:
      return methods.subspan(kDictMethods);
    default:
      return {};
  }
}

}  // namespace

std::optional<Value> FindMethod(Runtime& runtime, const Value& object, std::string_view name) {
  const std::span<const Function> methods = MethodsOf(object);
  const auto method = std::ranges::find(methods, name, &Function::name);
  if (method != methods.end()) {
    Function* const bound = runtime.arena().New<Function>(*method);
    bound->object = object;
    return Value(bound);
  }
  // The sandbox hides what Python keeps under such names.
  const bool is_internal = name.starts_with("__") && name.ends_with("__");
  const std::span<const std::string_view> unsafe =
      object.Is(Kind::kDict)   ? std::span<const std::string_view>(kUnsafeOfDict)
      : object.Is(Kind::kList) ? std::span<const std::string_view>(kUnsafeOfList)
                               : std::span<const std::string_view>();
  if (!is_internal && std::ranges::find(unsafe, name) == unsafe.end()) return std::nullopt;
  return runtime.MakeUndefined(std::string("access to attribute '")
                                   .append(name)
                                   .append("' of '")
                                   .append(TypeName(object))
                                   .append("' object is unsafe"));
}

}  // namespace orcd::jinja
