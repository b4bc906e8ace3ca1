// The variables that a template is rendered with.
#ifndef ORCD_RUNTIME_TEXT_JINJA_CONTEXT_H_
#define ORCD_RUNTIME_TEXT_JINJA_CONTEXT_H_

#include <cstddef>
#include <ctime>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/text/jinja/arena.h"
#include "runtime/text/jinja/value.h"

namespace orcd::jinja {

// Values of one rendering, its variables included, take no more memory than this, and its text has
// no more bytes than the second.
inline constexpr size_t kMaxRenderBytes = size_t{44} << 20;
inline constexpr size_t kMaxPromptBytes = size_t{16} << 20;

struct Variable {
  std::string_view name;
  Value value;
};

// Deeper objects and arrays are refused.
inline constexpr size_t kMaxJsonDepth = 128;

// The variables of one rendering and the memory of their values. Makes values; each is valid as
// long as this. Views every string that it is given. For one thread.
class Context {
 public:
  // strftime_now shows `now`, which is local time with its microseconds.
  explicit Context(const std::tm& now, int microseconds = 0);

  // The last value of a name counts.
  void Set(std::string_view name, const Value& value) { variables_.push_back({name, value}); }

  // `text` is UTF-8. `origin` is kTemplate only for text that the worker or the model's file
  // supplies, such as the names of roles and bos_token: control tokens are recognised in it. Once
  // the memory is spent, lists and dictionaries lack what does not fit, and Render fails.
  Value String(std::string_view text, Origin origin = Origin::kUser);
  Value List(std::span<const Value> items);
  Value Dict(std::span<const Variable> entries);

  // The value of `json`; its strings are the user's. kInvalidArgument, with what is wrong and
  // where, if it is not one JSON value of at most kMaxJsonDepth levels, an object has a key twice,
  // or a number exceeds the range of a double.
  absl::StatusOr<Value> Json(std::string_view json);

  std::span<const Variable> variables() const { return variables_; }
  Arena& arena() { return arena_; }
  const std::tm& now() const { return now_; }
  int microseconds() const { return microseconds_; }

 private:
  Arena arena_{kMaxRenderBytes};
  std::vector<Variable> variables_;
  std::tm now_;
  int microseconds_;
};

}  // namespace orcd::jinja

#endif  // ORCD_RUNTIME_TEXT_JINJA_CONTEXT_H_
