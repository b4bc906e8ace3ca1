// W3C trace context: which trace a call belongs to. https://www.w3.org/TR/trace-context/
#ifndef ORCD_WORKER_TRACE_CONTEXT_H_
#define ORCD_WORKER_TRACE_CONTEXT_H_

#include <grpcpp/server_context.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace orcd {

using TraceId = std::array<uint8_t, 16>;
using SpanId = std::array<uint8_t, 8>;

struct TraceContext {
  TraceId trace_id = {};
  // Of the caller's span; all zero where the trace begins here.
  SpanId parent = {};
  // Whether the caller records the trace; where it begins here, whether this worker does.
  bool sampled = false;
  // The header `tracestate`, to be passed on as it is.
  std::string state;

  bool has_parent() const { return parent != SpanId{}; }
};

// The value of a header `traceparent`; nothing where it is malformed.
std::optional<TraceContext> ParseTraceparent(std::string_view header);

// That of the call, or a new trace, which is recorded with probability `sample_ratio`.
TraceContext TraceContextOf(const grpc::ServerContextBase& context, double sample_ratio);

SpanId MakeSpanId();

// In hex.
std::string ToHex(const TraceId& id);

}  // namespace orcd

#endif  // ORCD_WORKER_TRACE_CONTEXT_H_
