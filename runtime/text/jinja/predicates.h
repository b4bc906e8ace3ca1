// The tests of templates: what may follow `is`.
#ifndef ORCD_RUNTIME_TEXT_JINJA_PREDICATES_H_
#define ORCD_RUNTIME_TEXT_JINJA_PREDICATES_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/text/jinja/arguments.h"
#include "runtime/text/jinja/value.h"

namespace orcd::jinja {

class Runtime;

// A row of the table of tests.
struct PredicateRow {
  std::string_view name;
  // After the value that is tested.
  Parameters parameters;
  absl::StatusOr<bool> (*holds)(Runtime&, const Value& value, const Bound&);
};

// Null if there is none of this name.
const PredicateRow* FindPredicate(std::string_view name);

}  // namespace orcd::jinja

#endif  // ORCD_RUNTIME_TEXT_JINJA_PREDICATES_H_
