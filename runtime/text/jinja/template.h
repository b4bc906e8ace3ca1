// Chat templates: programs in the template language of Jinja2, as Hugging Face's transformers runs
// them.
//
// https://jinja.palletsprojects.com/en/stable/templates/ describes the language. The settings are
// those of transformers: trim_blocks, lstrip_blocks, break and continue, the sandbox without
// methods that modify, the functions raise_exception and strftime_now, tojson without escapes for
// HTML, and generation tags. Nothing here reads files, the network or the environment.
#ifndef ORCD_RUNTIME_TEXT_JINJA_TEMPLATE_H_
#define ORCD_RUNTIME_TEXT_JINJA_TEMPLATE_H_

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/text/jinja/context.h"
#include "runtime/text/prompt_piece.h"

namespace orcd::jinja {

struct Program;

// Longer templates are refused.
inline constexpr size_t kMaxTemplateBytes = size_t{128} << 10;

// Immutable; any thread may render. Copies share the program.
class Template {
 public:
  // kInvalidArgument, `line N: …`, if `source` is no template or nests too deep.
  static absl::StatusOr<Template> Parse(std::string_view source);

  // The text as pieces, of which no two neighbours are of the same origin and none is empty. Takes
  // at most about a second and 64 MiB, whatever the template does. kInvalidArgument with the
  // template's own words if it raises an exception (raise_exception); kFailedPrecondition,
  // `line N: …`, if it does what Python refuses or what this engine lacks; kResourceExhausted,
  // `line N: …`, if it takes too many steps, too much memory, or nests too deep. The same context
  // gives the same text.
  absl::StatusOr<std::vector<PromptPiece>> Render(Context& context) const;

 private:
  explicit Template(std::shared_ptr<const Program> program) : program_(std::move(program)) {}

  std::shared_ptr<const Program> program_;
};

}  // namespace orcd::jinja

#endif  // ORCD_RUNTIME_TEXT_JINJA_TEMPLATE_H_
