// Makes a template's program from its source.
#ifndef ORCD_RUNTIME_TEXT_JINJA_PARSER_H_
#define ORCD_RUNTIME_TEXT_JINJA_PARSER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/text/jinja/ast.h"

namespace orcd::jinja {

// Brackets and blocks may nest this deep.
inline constexpr int kMaxProgramDepth = 100;

// `source` is UTF-8 whose line breaks are all `\n`. kInvalidArgument, `line N: …`.
absl::StatusOr<std::unique_ptr<const Program>> ParseProgram(std::string source);

}  // namespace orcd::jinja

#endif  // ORCD_RUNTIME_TEXT_JINJA_PARSER_H_
