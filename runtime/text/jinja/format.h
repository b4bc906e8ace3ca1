// Python's formatting of values: `%` and str.format.
#ifndef ORCD_RUNTIME_TEXT_JINJA_FORMAT_H_
#define ORCD_RUNTIME_TEXT_JINJA_FORMAT_H_

#include "absl/status/statusor.h"
#include "runtime/text/jinja/arguments.h"
#include "runtime/text/jinja/value.h"

namespace orcd::jinja {

class Runtime;

// `format % value`, where a tuple holds several values and a dictionary named ones.
absl::StatusOr<Value> FormatPercent(Runtime& runtime, const Text& format, const Value& value);

// format.format(arguments).
absl::StatusOr<Value> FormatBraces(Runtime& runtime, const Text& format,
                                   const Arguments& arguments);

}  // namespace orcd::jinja

#endif  // ORCD_RUNTIME_TEXT_JINJA_FORMAT_H_
