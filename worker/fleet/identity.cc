#include "worker/fleet/identity.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdint>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "runtime/base/utf8.h"
#include "worker/fleet/host_port.h"

namespace orcd {
namespace {

constexpr size_t kMaxWorkerIdBytes = 256;

}  // namespace

std::string HostName() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  if (gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return ReplaceInvalidUtf8(name.data());
}

std::string MakeInstanceId() {
  std::random_device random;
  const uint32_t a = random();
  const uint32_t b = (random() & 0xFFFF0FFF) | 0x00004000;  // Version.
  const uint32_t c = (random() & 0x3FFFFFFF) | 0x80000000;  // Variant.
  const uint32_t d = random();
  return absl::StrFormat("%08x-%04x-%04x-%04x-%04x%08x", a, b >> 16, b & 0xFFFF, c >> 16,
                         c & 0xFFFF, d);
}

std::string DefaultWorkerId(const std::string& listen, const std::string& instance_id) {
  const std::string port = listen.substr(listen.rfind(':') + 1);
  return absl::StrCat(HostName(), "-", port == "0" ? instance_id.substr(0, 8) : port);
}

absl::Status CheckWorkerId(const std::string& worker_id) {
  const auto wrong = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("must be at most ", kMaxWorkerIdBytes,
                     " bytes of UTF-8 without control characters; it has ", why));
  };
  if (worker_id.size() > kMaxWorkerIdBytes) {
    return wrong(absl::StrCat(worker_id.size(), " bytes"));
  }
  if (FindInvalidUtf8(worker_id) < worker_id.size()) return wrong("bytes that are not UTF-8");
  const auto control = std::find_if(worker_id.begin(), worker_id.end(),
                                    [](unsigned char c) { return c < ' ' || c == 0x7f; });
  if (control == worker_id.end()) return absl::OkStatus();
  return wrong(absl::StrCat("a control character at byte ", control - worker_id.begin() + 1));
}

std::string ReachableAddress(const std::string& bound, const std::string& host) {
  absl::StatusOr<HostPort> address = ParseHostPort(bound, 0);
  if (!address.ok()) return bound;
  if (absl::StatusOr<HostPort> given = ParseHost(host); given.ok()) {
    given->port = address->port;
    return given->ToString();
  }
  // The wildcard address ("all addresses of the machine"), in any spelling.
  if (address->host.find_first_not_of("0:.") == std::string::npos) {
    *address = {.host = HostName(), .port = address->port, .is_ipv6 = false};
  }
  return address->ToString();
}

}  // namespace orcd
