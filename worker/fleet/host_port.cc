#include "worker/fleet/host_port.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace orcd {
namespace {

constexpr int kMaxPort = 65535;
constexpr size_t kMaxHostBytes = 253;

bool IsIpv4(const std::string& text) {
  in_addr address;
  return inet_pton(AF_INET, text.c_str(), &address) == 1;
}

// Accepts an address without brackets; it may name an interface too, as in fe80::1%eth0.
bool IsIpv6(std::string_view text) {
  const size_t zone = text.find('%');
  if (zone != std::string_view::npos && zone + 1 == text.size()) return false;
  in6_addr address;
  return inet_pton(AF_INET6, std::string(text.substr(0, zone)).c_str(), &address) == 1;
}

bool IsDigit(char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); }

bool IsNameCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_';
}

// Returns the reason why `host`, which has no brackets, is invalid; empty if it is valid.
std::string WrongHost(const std::string& host) {
  if (host.empty()) return "it has no host";
  if (host.size() > kMaxHostBytes) {
    return absl::StrCat("its host has ", host.size(), " bytes of at most ", kMaxHostBytes);
  }
  if (host.find(':') != std::string::npos) {
    return IsIpv6(host) ? "an IPv6 address needs brackets before its port"
                        : "its host has a ':' and is no IPv6 address in brackets";
  }
  if (!std::all_of(host.begin(), host.end(), IsNameCharacter)) {
    return "its host has a character that is not a letter, a digit, '.', '-' or '_'";
  }
  const bool numeric =
      std::all_of(host.begin(), host.end(), [](char c) { return IsDigit(c) || c == '.'; });
  if (numeric && !IsIpv4(host)) return "its host is numbers, and no IPv4 address";
  return "";
}

// Returns the index of the first blank or control character; text.size() if there is none.
size_t FindBlank(std::string_view text) {
  const auto blank =
      std::find_if(text.begin(), text.end(), [](unsigned char c) { return c <= ' ' || c == 0x7f; });
  return static_cast<size_t>(blank - text.begin());
}

absl::Status NotHostPort(std::string_view text, int min_port, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "'", absl::string_view(text.data(), text.size()), "' is not host:port: ",
      absl::string_view(why.data(), why.size()), "; give a port of ", min_port, " to ", kMaxPort,
      " after a name or an address, such as 127.0.0.1:50051 or [::1]:50051"));
}

}  // namespace

std::string HostPort::ToString() const {
  return is_ipv6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<HostPort> ParseHostPort(std::string_view text, int min_port) {
  const auto wrong = [&](std::string_view why) { return NotHostPort(text, min_port, why); };
  if (const size_t blank = FindBlank(text); blank < text.size()) {
    return wrong(absl::StrCat("byte ", blank + 1, " is a blank or a control character"));
  }
  HostPort address;
  std::string_view port;
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return wrong("it has a '[' without its ']'");
    address.host = text.substr(1, end - 1);
    address.is_ipv6 = true;
    if (!IsIpv6(address.host)) return wrong("there is no IPv6 address in its brackets");
    if (end + 1 == text.size() || text[end + 1] != ':') return wrong("it has no port");
    port = text.substr(end + 2);
  } else {
    const size_t colon = text.rfind(':');
    if (colon == std::string_view::npos) return wrong("it has no port");
    // If the whole text is an IPv6 address, its last group may or may not be meant as a port.
    if (IsIpv6(text)) return wrong("an IPv6 address needs brackets before its port");
    address.host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (const std::string why = WrongHost(address.host); !why.empty()) return wrong(why);
  }
  if (port.empty()) return wrong("it has no port");
  const bool digits = std::all_of(port.begin(), port.end(), IsDigit);
  if (!digits) return wrong("its port is not a number");
  if (!absl::SimpleAtoi(absl::string_view(port.data(), port.size()), &address.port) ||
      address.port < min_port || address.port > kMaxPort) {
    return wrong("its port is out of range");
  }
  return address;
}

absl::StatusOr<HostPort> ParseHost(std::string_view text) {
  const auto wrong = [&](std::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", absl::string_view(text.data(), text.size()),
                     "' is not a host: ", absl::string_view(why.data(), why.size()),
                     "; give a name or an address without a port, such as 10.0.0.7 or fd00::7"));
  };
  if (const size_t blank = FindBlank(text); blank < text.size()) {
    return wrong(absl::StrCat("byte ", blank + 1, " is a blank or a control character"));
  }
  std::string_view inner = text;
  const bool bracketed = inner.starts_with('[') && inner.ends_with(']');
  if (bracketed) inner = inner.substr(1, inner.size() - 2);
  HostPort address{.host = std::string(inner), .port = 0, .is_ipv6 = IsIpv6(inner)};
  if (address.is_ipv6) return address;
  if (bracketed) return wrong("there is no IPv6 address in its brackets");
  if (ParseHostPort(text, 0).ok() || IsIpv6(text.substr(0, text.rfind(':')))) {
    return wrong("it has a port");
  }
  if (const std::string why = WrongHost(address.host); !why.empty()) return wrong(why);
  return address;
}

}  // namespace orcd
