#include "worker/observe/trace_context.h"

#include <openssl/rand.h>

#include <algorithm>

#include "absl/strings/escaping.h"

namespace orcd {
namespace {

// The length of version 00; later versions may continue after another dash.
constexpr size_t kLength = 55;
constexpr size_t kMaxStateBytes = 512;

template <typename Id>
Id RandomId() {
  Id id;
  do {
    RAND_bytes(id.data(), static_cast<int>(id.size()));
  } while (id == Id{});
  return id;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// Accepts lower case only, as the standard requires.
template <typename Bytes>
bool ParseHex(std::string_view text, Bytes& bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    const int high = HexDigit(text[2 * i]);
    const int low = HexDigit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    bytes[i] = static_cast<uint8_t>(16 * high + low);
  }
  return true;
}

// Returns true with this probability.
bool Draw(double probability) {
  const auto random = RandomId<std::array<uint8_t, 4>>();
  uint32_t value = 0;
  for (uint8_t byte : random) value = value << 8 | byte;
  return value < probability * 0x1p32;
}

}  // namespace

std::optional<TraceContext> ParseTraceparent(std::string_view header) {
  if (header.size() < kLength || header[2] != '-' || header[35] != '-' || header[52] != '-') {
    return std::nullopt;
  }
  std::array<uint8_t, 1> version;
  std::array<uint8_t, 1> flags;
  TraceContext context;
  if (!ParseHex(header.substr(0, 2), version) ||
      !ParseHex(header.substr(3, 32), context.trace_id) ||
      !ParseHex(header.substr(36, 16), context.parent) || !ParseHex(header.substr(53, 2), flags)) {
    return std::nullopt;
  }
  const bool length_fits = header.size() == kLength || (version[0] > 0 && header[kLength] == '-');
  if (version[0] == 0xff || !length_fits || context.trace_id == TraceId{} ||
      context.parent == SpanId{}) {
    return std::nullopt;
  }
  context.sampled = (flags[0] & 1) != 0;
  return context;
}

TraceContext TraceContextOf(const grpc::ServerContextBase& context, double sample_ratio) {
  const auto& metadata = context.client_metadata();
  // Several headers count as none.
  if (metadata.count("traceparent") == 1) {
    const grpc::string_ref header = metadata.find("traceparent")->second;
    if (auto parsed = ParseTraceparent({header.data(), header.size()})) {
      if (const auto state = metadata.find("tracestate"); state != metadata.end()) {
        if (state->second.size() <= kMaxStateBytes) {
          parsed->state = std::string(state->second.data(), state->second.size());
        }
      }
      return *parsed;
    }
  }
  return {
      .trace_id = RandomId<TraceId>(), .parent = {}, .sampled = Draw(sample_ratio), .state = {}};
}

SpanId MakeSpanId() { return RandomId<SpanId>(); }

std::string ToHex(const TraceId& id) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(id.data()), id.size()));
}

}  // namespace orcd
