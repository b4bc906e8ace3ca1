#include "worker/orchestrator_address.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace orcd {
namespace {

constexpr int kMaxPort = 65535;

// Of a URL: a name, an IPv4 address, or an IPv6 address in brackets.
bool IsUrlHost(absl::string_view host) {
  const bool bracketed = absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]");
  for (const char c : host) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.') continue;
    if (bracketed ? c == ':' : c == '-' || c == '_') continue;
    return false;
  }
  return !host.empty();
}

}  // namespace

std::string CheckHostPort(const std::string& address, int min_port) {
  const size_t colon = address.rfind(':');
  int port = -1;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < min_port || port > kMaxPort) {
    return absl::StrCat("'", address, "' is not host:port with a port of ", min_port, " to ",
                        kMaxPort, ", such as 127.0.0.1:50051");
  }
  return "";
}

absl::StatusOr<OrchestratorAddress> ParseOrchestratorAddress(const std::string& text) {
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, "http://") && !absl::ConsumePrefix(&rest, "https://")) {
    if (rest.find("//") != absl::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", text, "' is neither host:port of an orchestrator of orcd.v1 nor smg's ",
                       "http://host:port or https://host:port"));
    }
    const std::string wrong = CheckHostPort(text, 1);
    if (!wrong.empty()) return absl::InvalidArgumentError(wrong);
    return OrchestratorAddress{.protocol = OrchestratorAddress::Protocol::kOrcd, .text = text};
  }
  absl::ConsumeSuffix(&rest, "/");
  const std::string host_port(rest);
  if (!CheckHostPort(host_port, 1).empty() || !IsUrlHost(rest.substr(0, rest.rfind(':')))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "' is not http://host:port or https://host:port with nothing after ",
        "it, such as http://127.0.0.1:30000"));
  }
  return OrchestratorAddress{.protocol = OrchestratorAddress::Protocol::kSmg,
                             .text = std::string(absl::StripSuffix(text, "/"))};
}

}  // namespace orcd
