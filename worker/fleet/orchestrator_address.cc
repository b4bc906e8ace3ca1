#include "worker/fleet/orchestrator_address.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "runtime/base/error.h"
#include "worker/fleet/host_port.h"

namespace orcd {
absl::StatusOr<OrchestratorAddress> ParseOrchestratorAddress(const std::string& text) {
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, "http://") && !absl::ConsumePrefix(&rest, "https://")) {
    if (rest.find("//") != absl::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", text, "' is neither host:port of an orchestrator of orcd.v1 nor smg's ",
                       "http://host:port or https://host:port"));
    }
    ORCD_RETURN_IF_ERROR(ParseHostPort(text, 1).status());
    return OrchestratorAddress{.protocol = OrchestratorAddress::Protocol::kOrcd, .text = text};
  }
  absl::ConsumeSuffix(&rest, "/");
  const absl::Status wrong = ParseHostPort(std::string_view(rest.data(), rest.size()), 1).status();
  if (!wrong.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text,
                     "' is not http://host:port or https://host:port with nothing after it, such "
                     "as http://127.0.0.1:30000: ",
                     wrong.message()));
  }
  return OrchestratorAddress{.protocol = OrchestratorAddress::Protocol::kSmg,
                             .text = std::string(absl::StripSuffix(text, "/"))};
}

}  // namespace orcd
