// The values of a template program: those of Python that Jinja templates meet.
#ifndef ORCD_RUNTIME_TEXT_JINJA_VALUE_H_
#define ORCD_RUNTIME_TEXT_JINJA_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/text/jinja/arena.h"

namespace orcd::jinja {

// The author of a byte. Where an operation leaves this open, the byte is the user's.
enum class Origin : uint8_t { kUser, kTemplate };

// Immutable UTF-8 with the origin of each byte.
struct Text {
  std::string_view bytes;
  // One for each byte; null: all bytes are of `origin`.
  const Origin* origins = nullptr;
  Origin origin = Origin::kUser;
  // Python's Markup, which the filter `safe` makes: text that is joined to it is escaped for HTML.
  bool markup = false;

  Origin OriginAt(size_t i) const { return origins == nullptr ? origin : origins[i]; }
  // Bytes [begin, begin + length).
  Text Sub(size_t begin, size_t length) const {
    return {bytes.substr(begin, length), origins == nullptr ? nullptr : origins + begin, origin,
            markup};
  }
};

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  // An integer beyond 64 bits, which only JSON brings. It can be printed and tested, not computed
  // with.
  kBigInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  // Results of dict.keys(), values() and items().
  kDictView,
  kRange,
  // A value that can be iterated once: the result of map, select, items and the like.
  kGenerator,
  kNamespace,
  kLoop,
  kMacro,
  // A method with its object, or a global function.
  kFunction,
};

struct Undefined;
struct Sequence;
struct Dict;
struct DictView;
struct Range;
struct Generator;
struct Namespace;
struct Loop;
struct Macro;
struct Function;

// A handle: copies share what it refers to, which an arena (or, for constants, a template) owns.
class Value {
 public:
  Value() : Value(Kind::kUndefined, nullptr) {}
  static Value None() { return Value(Kind::kNone, nullptr); }
  static Value Bool(bool value) {
    Value result(Kind::kBool, nullptr);
    result.integer_ = value ? 1 : 0;
    return result;
  }
  static Value Int(int64_t value) {
    Value result(Kind::kInt, nullptr);
    result.integer_ = value;
    return result;
  }
  static Value Float(double value) {
    Value result(Kind::kFloat, nullptr);
    result.floating_ = value;
    return result;
  }
  static Value BigInt(const Text* digits) { return Value(Kind::kBigInt, digits); }
  explicit Value(const Undefined* object) : Value(Kind::kUndefined, object) {}
  explicit Value(const Text* object) : Value(Kind::kString, object) {}
  Value(const Sequence* object, bool is_tuple)
      : Value(is_tuple ? Kind::kTuple : Kind::kList, object) {}
  explicit Value(const Dict* object) : Value(Kind::kDict, object) {}
  explicit Value(const DictView* object) : Value(Kind::kDictView, object) {}
  explicit Value(const Range* object) : Value(Kind::kRange, object) {}
  explicit Value(Generator* object) : Value(Kind::kGenerator, object) {}
  explicit Value(Namespace* object) : Value(Kind::kNamespace, object) {}
  explicit Value(Loop* object) : Value(Kind::kLoop, object) {}
  explicit Value(const Macro* object) : Value(Kind::kMacro, object) {}
  explicit Value(const Function* object) : Value(Kind::kFunction, object) {}

  Kind kind() const { return kind_; }
  bool Is(Kind kind) const { return kind_ == kind; }
  bool IsDefined() const { return kind_ != Kind::kUndefined; }
  // Booleans are integers, as in Python.
  bool IsInteger() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool IsNumber() const { return IsInteger() || kind_ == Kind::kFloat; }
  bool IsSequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }

  // Each needs the kind that its name says.
  bool boolean() const { return integer_ != 0; }
  int64_t integer() const { return integer_; }
  double floating() const { return floating_; }
  double number() const {
    return kind_ == Kind::kFloat ? floating_ : static_cast<double>(integer_);
  }
  // The bytes of a string, or the digits of a kBigInt.
  const Text& text() const { return *As<Text>(); }
  const Sequence& sequence() const { return *As<Sequence>(); }
  const Dict& dict() const { return *As<Dict>(); }
  const DictView& dict_view() const { return *As<DictView>(); }
  const Range& range() const { return *As<Range>(); }
  Generator& generator() const { return *const_cast<Generator*>(As<Generator>()); }
  Namespace& name_space() const { return *const_cast<Namespace*>(As<Namespace>()); }
  Loop& loop() const { return *const_cast<Loop*>(As<Loop>()); }
  const Macro& macro() const { return *As<Macro>(); }
  const Function& function() const { return *As<Function>(); }
  // Null for a name that nobody has set.
  const Undefined* undefined() const { return As<Undefined>(); }
  // Equal for handles of one object.
  const void* identity() const { return object_; }

 private:
  Value(Kind kind, const void* object) : kind_(kind), object_(object) {}
  template <typename T>
  const T* As() const {
    return static_cast<const T*>(object_);
  }

  Kind kind_;
  union {
    const void* object_;
    int64_t integer_;
    double floating_;
  };
};

// The result of a look-up that failed. Printing it gives nothing; most other uses fail with its
// message.
struct Undefined {
  std::string_view message;
};

// A list or tuple.
struct Sequence {
  std::span<const Value> items;
  // True for a result of the filter groupby, whose parts also have names.
  bool is_group = false;
};

struct DictEntry {
  Value key;
  Value value;
};

// In order of insertion. Keys are unequal.
struct Dict {
  std::span<const DictEntry> entries;
};

struct DictView {
  enum class Of : uint8_t { kKeys, kValues, kItems };
  const Dict* dict;
  Of of;
};

// Python's range: begin, begin + step, … before end. `step` is not 0.
struct Range {
  int64_t begin;
  int64_t end;
  int64_t step;

  int64_t size() const {
    if (step > 0 ? begin >= end : begin <= end) return 0;
    // Unsigned: the distance of two numbers may take 64 bits, and so may a negative step's size.
    const auto first = static_cast<uint64_t>(begin), last = static_cast<uint64_t>(end);
    const auto by = static_cast<uint64_t>(step);
    const uint64_t steps = step > 0 ? (last - first - 1) / by : (first - last - 1) / (0 - by);
    return static_cast<int64_t>(steps + 1);
  }
};

// The name of a value's type in Python, for messages.
std::string_view TypeName(const Value& value);

}  // namespace orcd::jinja

#endif  // ORCD_RUNTIME_TEXT_JINJA_VALUE_H_
