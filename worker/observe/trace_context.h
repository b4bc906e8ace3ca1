// W3C trace context: the trace that a call belongs to. https://www.w3.org/TR/trace-context/
#ifndef ORCD_WORKER_OBSERVE_TRACE_CONTEXT_H_
#define ORCD_WORKER_OBSERVE_TRACE_CONTEXT_H_

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
  // Id of the caller's span; all zero if the trace begins here.
  SpanId parent = {};
  // True if the caller records the trace, or, if the trace begins here, if this worker does.
  bool sampled = false;
  // The header `tracestate`, passed on unchanged.
  std::string state;

  bool has_parent() const { return parent != SpanId{}; }
};

// Parses a `traceparent` header; returns nullopt if it is malformed.
std::optional<TraceContext> ParseTraceparent(std::string_view header);

// Returns the call's trace context, or a new trace, which is recorded with probability
// `sample_ratio`.
TraceContext TraceContextOf(const grpc::ServerContextBase& context, double sample_ratio);

SpanId MakeSpanId();

// In hex.
std::string ToHex(const TraceId& id);

}  // namespace orcd

#endif  // ORCD_WORKER_OBSERVE_TRACE_CONTEXT_H_
