// Filters on what can be iterated.
#include <algorithm>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/text/jinja/characters.h"
#include "runtime/text/jinja/filters.h"
#include "runtime/text/jinja/methods.h"
#include "runtime/text/jinja/predicates.h"
#include "runtime/text/jinja/runtime.h"
#include "runtime/text/jinja/text_operations.h"

namespace orcd::jinja {
namespace {

using Result = absl::StatusOr<Value>;
using Items = std::span<const Value>;

Value GeneratorOf(Runtime& runtime, Items items) {
  return runtime.MakeGenerator(
      {.type = Generator::Type::kItems, .source = {runtime.MakeList(items)}});
}

bool IsSet(Runtime& runtime, const Bound& arguments, size_t i) {
  return arguments.Has(i) && runtime.IsTrue(arguments[i]);
}

// --- Attributes as keys

// `value` in lower case if it is a string.
Result IgnoreCase(Runtime& runtime, const Value& value) {
  return value.Is(Kind::kString) ? ChangeCase(runtime, value.text(), Case::kLower) : value;
}

struct KeyFormat {
  // None: the item itself.
  Value path = Value::None();
  Value fallback = {};
  bool case_sensitive = false;
};

Result KeyOf(Runtime& runtime, const Value& item, const KeyFormat& format) {
  ORCD_RETURN_IF_ERROR(runtime.Step());
  ORCD_ASSIGN_OR_RETURN(const Value key, runtime.GetPath(item, format.path, format.fallback));
  return format.case_sensitive ? Result(key) : IgnoreCase(runtime, key);
}

// The keys of all items.
absl::StatusOr<Items> KeysOf(Runtime& runtime, Items items, const KeyFormat& format) {
  ArenaVector<Value> keys(runtime.arena());
  keys.Reserve(items.size());
  for (const Value& item : items) {
    ORCD_ASSIGN_OR_RETURN(const Value key, KeyOf(runtime, item, format));
    keys.Add(key);
  }
  return Items(keys.items());
}

absl::StatusOr<Items> Reordered(Runtime& runtime, Items items, Items keys, bool descending) {
  ORCD_ASSIGN_OR_RETURN(const auto order, runtime.SortedOrder(keys, descending));
  ArenaVector<Value> sorted(runtime.arena());
  sorted.Reserve(items.size());
  for (const size_t i : order) sorted.Add(items[i]);
  return Items(sorted.items());
}

// --- Ends and size

Result Length(Runtime& runtime, const Value& value, const Bound&) {
  ORCD_ASSIGN_OR_RETURN(const int64_t length, runtime.Length(value));
  return Value::Int(length);
}

Result First(Runtime& runtime, const Value& value, const Bound&) {
  ORCD_ASSIGN_OR_RETURN(Iterator iterator, runtime.Iterate(value));
  Value item;
  ORCD_ASSIGN_OR_RETURN(const bool found, runtime.Next(iterator, item));
  return found ? item : runtime.MakeUndefined("No first item, sequence was empty.");
}

Result Last(Runtime& runtime, const Value& value, const Bound&) {
  if (value.Is(Kind::kGenerator)) return runtime.TypeError("is not reversible", value);
  ORCD_ASSIGN_OR_RETURN(const Items items, runtime.ToList(value));
  return items.empty() ? runtime.MakeUndefined("No last item, sequence was empty.") : items.back();
}

Result List(Runtime& runtime, const Value& value, const Bound&) {
  ORCD_ASSIGN_OR_RETURN(const Items items, runtime.ToList(value));
  return runtime.MakeList(items);
}

Result Reverse(Runtime& runtime, const Value& value, const Bound&) {
  ORCD_ASSIGN_OR_RETURN(const Items items, runtime.ToList(value));
  ORCD_RETURN_IF_ERROR(runtime.Step(items.size()));
  if (value.Is(Kind::kString)) {
    TextBuilder out(runtime.arena());
    for (size_t i = items.size(); i > 0; --i) out.Append(items[i - 1].text());
    Text text = out.text();
    text.markup = value.text().markup;
    return runtime.Make(text);
  }
  ArenaVector<Value> reversed(runtime.arena());
  reversed.Reserve(items.size());
  for (size_t i = items.size(); i > 0; --i) reversed.Add(items[i - 1]);
  return value.Is(Kind::kGenerator) ? runtime.MakeList(reversed.items())
                                    : GeneratorOf(runtime, reversed.items());
}

Result Default(Runtime& runtime, const Value& value, const Bound& arguments) {
  const bool keeps = value.IsDefined() && (!IsSet(runtime, arguments, 1) || runtime.IsTrue(value));
  return keeps ? value : arguments.Or(0, runtime.MakeString("", Origin::kTemplate));
}

Result ItemPairs(Runtime& runtime, const Value& value, const Bound&) {
  if (!value.IsDefined()) return GeneratorOf(runtime, {});
  if (!value.Is(Kind::kDict)) return runtime.Fail("Can only get item pairs from a mapping.");
  const auto* const view =
      runtime.arena().New<DictView>(DictView{&value.dict(), DictView::Of::kItems});
  return runtime.MakeGenerator({.type = Generator::Type::kItems, .source = {Value(view)}});
}

Result Attribute(Runtime& runtime, const Value& value, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const Text name, runtime.ToText(arguments[0]));
  if (!value.Is(Kind::kDict)) return runtime.GetAttribute(value, name.bytes);
  if (const std::optional<Value> method = FindMethod(runtime, value, name.bytes)) return *method;
  return runtime.MakeUndefined("'dict object' has no such attribute");
}

Result JoinItems(Runtime& runtime, const Value& value, const Bound& arguments) {
  Text separator;
  if (arguments.Has(0)) {
    ORCD_ASSIGN_OR_RETURN(separator, runtime.ToText(arguments[0]));
  }
  ORCD_ASSIGN_OR_RETURN(const Items items, runtime.ToList(value));
  ArenaVector<Text> texts(runtime.arena());
  texts.Reserve(items.size());
  for (const Value& item : items) {
    ORCD_ASSIGN_OR_RETURN(const Value part, runtime.GetPath(item, arguments.Or(1, Value::None())));
    ORCD_ASSIGN_OR_RETURN(const Text text, runtime.ToText(part));
    texts.Add(text);
  }
  ORCD_ASSIGN_OR_RETURN(const Text text, Join(runtime, separator, texts.items(), false));
  return runtime.Make(text);
}

// --- Order

Result Sort(Runtime& runtime, const Value& value, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const Items items, runtime.ToList(value));
  const bool case_sensitive = IsSet(runtime, arguments, 1);
  // Attributes are separated by commas; each item's key is a list of them.
  ArenaVector<Value> paths(runtime.arena());
  const Value attribute = arguments.Or(2, Value::None());
  if (attribute.Is(Kind::kString)) {
    const Text& names = attribute.text();
    for (size_t begin = 0, end; begin <= names.bytes.size(); begin = end + 1) {
      end = std::min(names.bytes.find(',', begin), names.bytes.size());
      paths.Add(runtime.Make(names.Sub(begin, end - begin)));
    }
  } else {
    paths.Add(attribute);
  }
  ArenaVector<Value> keys(runtime.arena());
  for (const Value& item : items) {
    ArenaVector<Value> parts(runtime.arena());
    for (const Value& path : paths.items()) {
      ORCD_ASSIGN_OR_RETURN(const Value key,
                            KeyOf(runtime, item, {.path = path, .case_sensitive = case_sensitive}));
      parts.Add(key);
    }
    keys.Add(runtime.MakeList(parts.items()));
  }
  ORCD_ASSIGN_OR_RETURN(const Items sorted,
                        Reordered(runtime, items, keys.items(), IsSet(runtime, arguments, 0)));
  return runtime.MakeList(sorted);
}

Result SortDict(Runtime& runtime, const Value& value, const Bound& arguments) {
  if (!value.Is(Kind::kDict)) return runtime.TypeError("has no items to sort", value);
  std::string_view by = "key";
  if (arguments.Has(1)) {
    ORCD_ASSIGN_OR_RETURN(const Text text, runtime.String(arguments[1]));
    by = text.bytes;
  }
  if (by != "key" && by != "value") return runtime.Fail("dictsort: by is 'key' or 'value'");
  const bool case_sensitive = IsSet(runtime, arguments, 0);
  ArenaVector<Value> pairs(runtime.arena());
  ArenaVector<Value> keys(runtime.arena());
  for (const DictEntry& entry : value.dict().entries) {
    pairs.Add(runtime.MakeTuple({entry.key, entry.value}));
    ORCD_ASSIGN_OR_RETURN(const Value key, KeyOf(runtime, by == "key" ? entry.key : entry.value,
                                                 {.case_sensitive = case_sensitive}));
    keys.Add(key);
  }
  ORCD_ASSIGN_OR_RETURN(const Items sorted, Reordered(runtime, pairs.items(), keys.items(),
                                                      IsSet(runtime, arguments, 2)));
  return runtime.MakeList(sorted);
}

Result Unique(Runtime& runtime, const Value& value, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const Items items, runtime.ToList(value));
  const KeyFormat format = {.path = arguments.Or(1, Value::None()),
                            .case_sensitive = IsSet(runtime, arguments, 0)};
  ORCD_ASSIGN_OR_RETURN(const Items keys, KeysOf(runtime, items, format));
  ArenaVector<Value> found(runtime.arena());
  ArenaVector<Value> seen(runtime.arena());
  for (size_t i = 0; i < items.size(); ++i) {
    bool is_new = true;
    for (const Value& other : seen.items()) {
      ORCD_ASSIGN_OR_RETURN(const bool equal, runtime.Equal(keys[i], other));
      is_new = is_new && !equal;
    }
    if (!is_new) continue;
    seen.Add(keys[i]);
    found.Add(items[i]);
  }
  return GeneratorOf(runtime, found.items());
}

template <bool kMax>
Result Extreme(Runtime& runtime, const Value& value, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const Items items, runtime.ToList(value));
  if (items.empty()) return runtime.MakeUndefined("No aggregated item, sequence was empty.");
  const KeyFormat format = {.path = arguments.Or(1, Value::None()),
                            .case_sensitive = IsSet(runtime, arguments, 0)};
  ORCD_ASSIGN_OR_RETURN(const Items keys, KeysOf(runtime, items, format));
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    ORCD_ASSIGN_OR_RETURN(const bool better, kMax ? runtime.Less(keys[best], keys[i])
                                                  : runtime.Less(keys[i], keys[best]));
    if (better) best = i;
  }
  return items[best];
}

Result Sum(Runtime& runtime, const Value& value, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const Items items, runtime.ToList(value));
  Value sum = arguments.Or(1, Value::Int(0));
  if (sum.Is(Kind::kString)) return runtime.Fail("sum() can't sum strings");
  for (const Value& item : items) {
    ORCD_ASSIGN_OR_RETURN(const Value part, runtime.GetPath(item, arguments.Or(0, Value::None())));
    ORCD_ASSIGN_OR_RETURN(sum, runtime.Apply(Operator::kAdd, sum, part));
  }
  return sum;
}

Result GroupBy(Runtime& runtime, const Value& value, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const Items items, runtime.ToList(value));
  KeyFormat format = {.path = arguments[0],
                      .fallback = arguments.Or(1, Value()),
                      .case_sensitive = IsSet(runtime, arguments, 2)};
  if (format.fallback.Is(Kind::kNone)) format.fallback = Value();
  ORCD_ASSIGN_OR_RETURN(const Items keys, KeysOf(runtime, items, format));
  ORCD_ASSIGN_OR_RETURN(const auto order, runtime.SortedOrder(keys, false));
  format.case_sensitive = true;
  ArenaVector<Value> groups(runtime.arena());
  for (size_t begin = 0, end; begin < order.size(); begin = end) {
    ArenaVector<Value> members(runtime.arena());
    for (end = begin; end < order.size(); ++end) {
      ORCD_ASSIGN_OR_RETURN(const bool equal, runtime.Equal(keys[order[begin]], keys[order[end]]));
      if (!equal) break;
      members.Add(items[order[end]]);
    }
    ORCD_ASSIGN_OR_RETURN(const Value key, KeyOf(runtime, members[0], format));
    Value group = runtime.MakeTuple({key, runtime.MakeList(members.items())});
    const_cast<Sequence&>(group.sequence()).is_group = true;
    groups.Add(group);
  }
  return runtime.MakeList(groups.items());
}

// --- Parts

Result Batch(Runtime& runtime, const Value& value, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const Items items, runtime.ToList(value));
  ORCD_ASSIGN_OR_RETURN(const int64_t size, runtime.Integer(arguments[0]));
  ArenaVector<Value> batches(runtime.arena());
  ArenaVector<Value> batch(runtime.arena());
  const auto end_batch = [&] {
    batches.Add(runtime.MakeList(batch.items()));
    batch = ArenaVector<Value>(runtime.arena());
  };
  for (const Value& item : items) {
    if (static_cast<int64_t>(batch.size()) == size) end_batch();
    batch.Add(item);
  }
  if (!batch.empty()) {
    const bool fills = arguments.Has(1) && !arguments[1].Is(Kind::kNone);
    if (fills) ORCD_RETURN_IF_ERROR(runtime.Step(std::clamp<int64_t>(size, 0, kMaxSteps + 1)));
    const auto missing = size - static_cast<int64_t>(batch.size());
    for (int64_t i = 0; fills && i < missing; ++i) batch.Add(arguments[1]);
    end_batch();
  }
  return GeneratorOf(runtime, batches.items());
}

Result Slice(Runtime& runtime, const Value& value, const Bound& arguments) {
  ORCD_ASSIGN_OR_RETURN(const Items items, runtime.ToList(value));
  ORCD_ASSIGN_OR_RETURN(const int64_t slices, runtime.Integer(arguments[0]));
  if (slices < 1) return runtime.Fail("slice: the number of slices is less than 1");
  ORCD_RETURN_IF_ERROR(runtime.Step(std::min<int64_t>(slices, kMaxSteps + 1)));
  const size_t each = items.size() / slices;
  const size_t longer = items.size() % slices;
  ArenaVector<Value> result(runtime.arena());
  size_t begin = 0;
  for (size_t i = 0; i < static_cast<size_t>(slices); ++i) {
    const size_t count = each + (i < longer ? 1 : 0);
    ArenaVector<Value> slice(runtime.arena());
    for (const Value& item : items.subspan(begin, count)) slice.Add(item);
    begin += count;
    const bool fills = arguments.Has(1) && !arguments[1].Is(Kind::kNone) && i >= longer;
    if (fills) slice.Add(arguments[1]);
    result.Add(runtime.MakeList(slice.items()));
  }
  return GeneratorOf(runtime, result.items());
}

// --- Application of filters and tests

Result Map(Runtime& runtime, const Value& value, const Arguments& arguments) {
  if (!runtime.IsTrue(value)) return GeneratorOf(runtime, {});
  ORCD_ASSIGN_OR_RETURN(const Iterator source, runtime.Iterate(value));
  Generator generator = {.type = Generator::Type::kMap, .source = source};
  if (arguments.positional.empty()) {
    ORCD_ASSIGN_OR_RETURN(const Bound bound,
                          Bind(runtime, "map", {{"attribute", "default"}, 1}, arguments));
    generator.type = Generator::Type::kMapAttribute;
    generator.attribute = bound[0];
    generator.fallback = bound.Or(1, Value());
    if (generator.fallback.Is(Kind::kNone)) generator.fallback = Value();
    return runtime.MakeGenerator(generator);
  }
  ORCD_ASSIGN_OR_RETURN(const Text name, runtime.ToText(arguments.positional[0]));
  generator.filter = FindFilter(name.bytes);
  if (generator.filter == nullptr) {
    return runtime.Fail(std::string("No filter named '").append(name.bytes).append("'."));
  }
  generator.arguments = arguments.Without(1);
  return runtime.MakeGenerator(generator);
}

template <bool kSelects, bool kByAttribute>
Result Select(Runtime& runtime, const Value& value, const Arguments& arguments) {
  if (!runtime.IsTrue(value)) return GeneratorOf(runtime, {});
  ORCD_ASSIGN_OR_RETURN(const Iterator source, runtime.Iterate(value));
  Generator generator = {.type = Generator::Type::kSelect, .source = source, .selects = kSelects};
  Arguments rest = arguments;
  if (kByAttribute) {
    if (rest.positional.empty()) return runtime.Fail("Missing parameter for attribute name");
    generator.attribute = rest.positional[0];
    rest = rest.Without(1);
  }
  if (!rest.positional.empty()) {
    ORCD_ASSIGN_OR_RETURN(const Text name, runtime.ToText(rest.positional[0]));
    generator.predicate = FindPredicate(name.bytes);
    if (generator.predicate == nullptr) {
      return runtime.Fail(std::string("No test named '").append(name.bytes).append("'."));
    }
    generator.arguments = rest.Without(1);
  }
  return runtime.MakeGenerator(generator);
}

constexpr FilterRow kRows[] = {
    {"length", {}, Length},
    {"count", {}, Length},
    {"first", {}, First},
    {"last", {}, Last},
    {"list", {}, List},
    {"reverse", {}, Reverse},
    {"default", {{"default_value", "boolean"}}, Default},
    {"d", {{"default_value", "boolean"}}, Default},
    {"items", {}, ItemPairs},
    {"attr", {{"name"}, 1}, Attribute},
    {"join", {{"d", "attribute"}}, JoinItems},
    {"sort", {{"reverse", "case_sensitive", "attribute"}}, Sort},
    {"dictsort", {{"case_sensitive", "by", "reverse"}}, SortDict},
    {"unique", {{"case_sensitive", "attribute"}}, Unique},
    {"min", {{"case_sensitive", "attribute"}}, Extreme<false>},
    {"max", {{"case_sensitive", "attribute"}}, Extreme<true>},
    {"sum", {{"attribute", "start"}}, Sum},
    {"groupby", {{"attribute", "default", "case_sensitive"}, 1}, GroupBy},
    {"batch", {{"linecount", "fill_with"}, 1}, Batch},
    {"slice", {{"slices", "fill_with"}, 1}, Slice},
    {"map", {}, nullptr, Map},
    {"select", {}, nullptr, Select<true, false>},
    {"reject", {}, nullptr, Select<false, false>},
    {"selectattr", {}, nullptr, Select<true, true>},
    {"rejectattr", {}, nullptr, Select<false, true>},
};

}  // namespace

std::span<const FilterRow> SequenceFilters() { return kRows; }

}  // namespace orcd::jinja
