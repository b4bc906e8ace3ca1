// The operations of Python on values, bounded in steps and memory.
#ifndef ORCD_RUNTIME_TEXT_JINJA_RUNTIME_H_
#define ORCD_RUNTIME_TEXT_JINJA_RUNTIME_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/text/jinja/arguments.h"
#include "runtime/text/jinja/ast.h"
#include "runtime/text/jinja/context.h"
#include "runtime/text/jinja/text_builder.h"
#include "runtime/text/jinja/value.h"

namespace orcd::jinja {

// Steps of one rendering: an operation is one, and so are kBytesPerStep bytes of text.
inline constexpr int64_t kMaxSteps = 3'000'000;
inline constexpr size_t kBytesPerStep = 16;
// Values may nest this deep where they are printed, compared or turned into JSON.
inline constexpr int kMaxValueDepth = 150;
// Expressions and blocks may nest this deep, through calls of macros.
inline constexpr int kMaxCallDepth = 600;

// The position in an iterable value.
struct Iterator {
  Value source;
  // Index of the next item; for a string in bytes.
  size_t next = 0;
};

// A generator applies this to the items of `source`.
struct Generator {
  enum class Type : uint8_t { kItems, kMap, kMapAttribute, kSelect };
  Type type;
  Iterator source;
  // kMap.
  const FilterRow* filter = nullptr;
  // kSelect: null tests for truth. `selects` is the result with which an item is kept.
  const PredicateRow* predicate = nullptr;
  bool selects = true;
  // kMapAttribute, and kSelect if it is defined.
  Value attribute = {};
  Value fallback = {};
  Arguments arguments = {};
};

struct Namespace {
  ArenaVector<Variable> variables;
};

struct Scope;

// A macro with the scope where it was defined.
struct Macro {
  const MacroBody* body;
  Scope* scope;
};

struct Function {
  // A method has the object, a global function none.
  Value object;
  std::string_view name;
  Parameters parameters;
  // Null: takes Arguments as they are.
  absl::StatusOr<Value> (*call)(Runtime&, const Value& object, const Bound&);
  absl::StatusOr<Value> (*call_with_arguments)(Runtime&, const Value& object, const Arguments&);
};

class Runtime {
 public:
  explicit Runtime(Context& context) : context_(context) {}
  virtual ~Runtime() = default;
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  Context& context() { return context_; }
  Arena& arena() { return context_.arena(); }

  // --- Errors and bounds

  // kFailedPrecondition with the line.
  absl::Status Fail(std::string_view message) const;
  absl::Status IntegerTooLarge() const;
  absl::Status TypeError(std::string_view wanted, const Value& found) const;
  // Fails once the steps are spent or the memory is.
  absl::Status Step(size_t steps = 1) {
    steps_left_ -= static_cast<int64_t>(steps);
    return steps_left_ < 0 || context_.arena().exhausted() ? Spent() : absl::OkStatus();
  }
  // Counts steps for a later Step to see.
  void Charge(size_t steps) { steps_left_ -= static_cast<int64_t>(steps); }
  absl::Status StepBytes(size_t bytes) { return Step(bytes / kBytesPerStep); }
  absl::Status TooDeep() const;

  // --- Making values

  Value Make(const Text& text) { return Value(arena().New<Text>(text)); }
  // Copies `text`.
  Value MakeString(std::string_view text, Origin origin = Origin::kUser);
  // `items` lives in the arena.
  Value MakeList(std::span<const Value> items) {
    return Value(arena().New<Sequence>(Sequence{items}), false);
  }
  Value MakeTuple(std::initializer_list<Value> items);
  Value MakeDict(std::span<const DictEntry> entries) {
    return Value(arena().New<Dict>(Dict{entries}));
  }
  Value MakeUndefined(std::string_view message);
  Value MakeGenerator(const Generator& generator) {
    return Value(arena().New<Generator>(generator));
  }

  // --- Operations; each fails as Python does

  bool IsTrue(const Value& value);
  absl::StatusOr<bool> Equal(const Value& a, const Value& b, int depth = 0);
  // `a < b`; `sign` is the operator, for the message.
  absl::StatusOr<bool> Less(const Value& a, const Value& b, std::string_view sign = "<",
                            int depth = 0);
  absl::StatusOr<bool> Contains(const Value& container, const Value& item);
  absl::StatusOr<Value> Apply(Operator op, const Value& a, const Value& b);
  absl::StatusOr<Value> Negate(const Value& value);
  absl::StatusOr<int64_t> Length(const Value& value);
  // `value` as an integer; fails for anything else.
  absl::StatusOr<int64_t> Integer(const Value& value) const;
  // The text of a string; fails for anything else.
  absl::StatusOr<Text> String(const Value& value) const;

  // str(value).
  absl::StatusOr<Text> ToText(const Value& value);
  // Appends repr(value).
  absl::Status AppendRepr(const Value& value, TextBuilder& out, int depth = 0);
  // Appends json.dumps(value).
  struct JsonFormat {
    bool ensure_ascii = false;
    bool sort_keys = false;
    // Null: everything on one line.
    const Text* indent = nullptr;
    std::string_view item_separator = ", ";
    std::string_view key_separator = ": ";
  };
  absl::Status AppendJson(const Value& value, const JsonFormat& format, TextBuilder& out,
                          int depth = 0);
  // `a` and `b` as one text. Repeated appending to the same text takes linear time.
  absl::StatusOr<Text> Concatenate(const Text& a, const Text& b);
  // `text`, `count` times.
  absl::StatusOr<Text> Repeat(const Text& text, int64_t count);

  // --- Access

  // The value of the key; null if there is none.
  absl::StatusOr<const Value*> Find(const Dict& dict, std::string_view key);
  // `object.name` and `object[key]`; undefined if there is none.
  absl::StatusOr<Value> GetAttribute(const Value& object, std::string_view name);
  absl::StatusOr<Value> GetItem(const Value& object, const Value& key);
  // Each part null where left out.
  absl::StatusOr<Value> GetSlice(const Value& object, const Value* begin, const Value* end,
                                 const Value* step);
  // The attribute that a filter's argument names: `a.b.0`, or an index. Undefined results on the
  // way become `fallback` if it is defined.
  absl::StatusOr<Value> GetPath(const Value& object, const Value& path, const Value& fallback = {});

  // --- Iteration

  absl::StatusOr<Iterator> Iterate(const Value& value);
  // False at the end.
  absl::StatusOr<bool> Next(Iterator& iterator, Value& item);
  // The indices of `keys` in ascending order, or descending; equal keys keep their order.
  absl::StatusOr<std::span<const size_t>> SortedOrder(std::span<const Value> keys, bool descending);
  // All items, in the arena.
  absl::StatusOr<std::span<const Value>> ToList(const Value& value);

  // --- Calls

  virtual absl::StatusOr<Value> Call(const Value& callee, const Arguments& arguments) = 0;
  virtual absl::StatusOr<Value> GetLoopAttribute(Loop& loop, std::string_view name) = 0;
  absl::StatusOr<Value> ApplyFilter(const FilterRow& row, const Value& value,
                                    const Arguments& arguments);
  absl::StatusOr<bool> ApplyPredicate(const PredicateRow& row, const Value& value,
                                      const Arguments& arguments);

 protected:
  // Counts one level of nesting while it lives.
  class Level {
   public:
    explicit Level(int& depth) : depth_(++depth) {}
    ~Level() { --depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    int& depth_;
  };

  // The line of the current operation, for messages.
  int line_ = 1;
  // Expressions, blocks and generators within each other.
  int depth_ = 0;

 private:
  absl::Status Spent() const;
  absl::StatusOr<Value> NextOfGenerator(Generator& generator, bool& found);
  absl::StatusOr<Value> ApplyToNumbers(Operator op, const Value& a, const Value& b);
  absl::Status AppendReprOfItems(std::span<const Value> items, TextBuilder& out, int depth);
  absl::Status AppendJsonOfDict(const Dict& dict, const JsonFormat& format, TextBuilder& out,
                                int depth);
  absl::Status AppendJsonBreak(const JsonFormat& format, int depth, TextBuilder& out);
  absl::StatusOr<std::span<const DictEntry>> SortedByKey(std::span<const DictEntry> entries);

  Context& context_;
  int64_t steps_left_ = kMaxSteps;
  // Some results of Concatenate, to which more may be appended in place.
  std::array<TextBuilder, 4> accumulators_ = {
      TextBuilder(context_.arena()), TextBuilder(context_.arena()), TextBuilder(context_.arena()),
      TextBuilder(context_.arena())};
};

// Python's repr of a float.
std::string FloatText(double value);
// Appends repr of a string, and the string as JSON.
void AppendStringRepr(std::string_view text, TextBuilder& out);
void AppendJsonString(std::string_view text, bool ensure_ascii, TextBuilder& out);

}  // namespace orcd::jinja

#endif  // ORCD_RUNTIME_TEXT_JINJA_RUNTIME_H_
