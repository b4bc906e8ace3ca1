#include "runtime/model/architectures.h"

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/model/model_error.h"

namespace orcd {
namespace {

constexpr const Architecture* kArchitectures[] = {&kQwen2, &kLlama};

}  // namespace

absl::StatusOr<const Architecture*> FindArchitecture(const GgufReader& gguf) {
  const absl::StatusOr<std::string_view> name = gguf.GetString("general.architecture");
  if (!name.ok()) return MissingKeyIsInvalid(name.status());
  for (const Architecture* architecture : kArchitectures) {
    if (architecture->name == *name) return architecture;
  }
  return UnsupportedModel(
      "general.architecture",
      absl::StrFormat(
          "this is a %s model; this worker runs %s, load one of those", QuoteForMessage(*name),
          absl::StrJoin(kArchitectures, " and ", [](std::string* out, const Architecture* row) {
            absl::StrAppendFormat(out, "%s (%s)", row->name, row->models);
          })));
}

absl::StatusOr<ModelSpec> ReadModelSpec(const GgufReader& gguf) {
  ORCD_ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitecture(gguf));
  return architecture->read(gguf);
}

}  // namespace orcd
