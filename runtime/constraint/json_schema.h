// JSON Schemas: which of them the constraint library compiles exactly, and in which form.
//
// The library refuses most keywords that it cannot enforce, without saying where they stand, and
// ignores or misreads some combinations. Both are refused here by JSON pointer. Keywords that
// annotate, and those that no draft knows, have no effect, as the specification says.
//
// `format`: the names date, date-time, time, duration, email, hostname, ipv4, ipv6, uri and uuid
// are enforced. Other names of the specification are refused; names that it does not know, such as
// `password`, annotate.
#ifndef ORCD_RUNTIME_CONSTRAINT_JSON_SCHEMA_H_
#define ORCD_RUNTIME_CONSTRAINT_JSON_SCHEMA_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace orcd {

// Checks a text that may be hostile, in linear time. Errors name `field` and a JSON pointer: reason
// CONSTRAINT_INVALID, CONSTRAINT_UNSUPPORTED, CONSTRAINT_TOO_LARGE, or CONSTRAINT_UNSATISFIABLE for
// recursion that no document ends. The library may still refuse what only compiling shows, such as
// options of a oneOf that may overlap.
absl::Status CheckSchema(const std::string& schema, const std::string& field, int max_depth);

// The schema as the library compiles it exactly, on one line. Requires that CheckSchema accepts it.
std::string SchemaForLibrary(const std::string& schema);

// JSON pointers to the uses of `keyword`, at most `limit`. Requires that CheckSchema accepts
// `schema`.
std::vector<std::string> FindKeyword(const std::string& schema, std::string_view keyword,
                                     size_t limit);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_JSON_SCHEMA_H_
