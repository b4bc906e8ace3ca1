// Arguments of calls, filters and tests, and their assignment to parameters.
#ifndef ORCD_RUNTIME_TEXT_JINJA_ARGUMENTS_H_
#define ORCD_RUNTIME_TEXT_JINJA_ARGUMENTS_H_

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/text/jinja/value.h"

namespace orcd::jinja {

class Runtime;

struct Keyword {
  std::string_view name;
  Value value;
};

struct Arguments {
  std::span<const Value> positional = {};
  std::span<const Keyword> keywords = {};

  // Without the first `count` positional arguments.
  Arguments Without(size_t count) const { return {positional.subspan(count), keywords}; }
};

inline constexpr size_t kMaxParameters = 5;

// The names of a function's parameters; unused ones are empty.
struct Parameters {
  std::array<std::string_view, kMaxParameters> names = {};
  // The first parameters that must be given.
  size_t needed = 0;

  size_t size() const;
};

// One value for each parameter.
class Bound {
 public:
  bool Has(size_t i) const { return given_[i]; }
  const Value& operator[](size_t i) const { return values_[i]; }
  Value Or(size_t i, const Value& value) const { return given_[i] ? values_[i] : value; }

  void Set(size_t i, const Value& value) {
    values_[i] = value;
    given_[i] = true;
  }

 private:
  std::array<Value, kMaxParameters> values_;
  std::array<bool, kMaxParameters> given_ = {};
};

// Assigns as Python does. Fails if an argument has no parameter or a needed one is missing.
absl::StatusOr<Bound> Bind(Runtime& runtime, std::string_view function,
                           const Parameters& parameters, const Arguments& arguments);

}  // namespace orcd::jinja

#endif  // ORCD_RUNTIME_TEXT_JINJA_ARGUMENTS_H_
