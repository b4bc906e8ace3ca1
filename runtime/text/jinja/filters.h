// The filters of templates.
#ifndef ORCD_RUNTIME_TEXT_JINJA_FILTERS_H_
#define ORCD_RUNTIME_TEXT_JINJA_FILTERS_H_

#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/text/jinja/arguments.h"
#include "runtime/text/jinja/value.h"

namespace orcd::jinja {

class Runtime;

// A row of the tables of filters.
struct FilterRow {
  std::string_view name;
  // After the value that is filtered.
  Parameters parameters;
  absl::StatusOr<Value> (*apply)(Runtime&, const Value& value, const Bound&);
  // For a filter that takes its arguments as they are; `apply` is then null.
  absl::StatusOr<Value> (*apply_to_arguments)(Runtime&, const Value& value,
                                              const Arguments&) = nullptr;
};

std::span<const FilterRow> TextFilters();
std::span<const FilterRow> NumberFilters();
std::span<const FilterRow> SequenceFilters();

// Null if there is none of this name.
const FilterRow* FindFilter(std::string_view name);

}  // namespace orcd::jinja

#endif  // ORCD_RUNTIME_TEXT_JINJA_FILTERS_H_
