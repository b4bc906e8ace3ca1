#include "worker/identity.h"

#include <unistd.h>

#include <array>
#include <climits>
#include <cstdint>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/utf8.h"

namespace orcd {

std::string HostName() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  if (gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return ReplaceInvalidUtf8(name.data());
}

std::string MakeInstanceId() {
  std::random_device random;
  const uint32_t a = random();
  const uint32_t b = (random() & 0xFFFF0FFF) | 0x00004000;  // The version.
  const uint32_t c = (random() & 0x3FFFFFFF) | 0x80000000;  // The variant.
  const uint32_t d = random();
  return absl::StrFormat("%08x-%04x-%04x-%04x-%04x%08x", a, b >> 16, b & 0xFFFF, c >> 16,
                         c & 0xFFFF, d);
}

std::string DefaultWorkerId(const std::string& listen, const std::string& instance_id) {
  const std::string port = listen.substr(listen.rfind(':') + 1);
  return absl::StrCat(HostName(), "-", port == "0" ? instance_id.substr(0, 8) : port);
}

std::string ReachableAddress(const std::string& bound) {
  const size_t colon = bound.rfind(':');
  const std::string host = bound.substr(0, colon);
  const bool all = host == "0.0.0.0" || host == "[::]" || host == "*";
  return all ? HostName() + bound.substr(colon) : bound;
}

}  // namespace orcd
