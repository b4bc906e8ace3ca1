#include "worker/observe/telemetry.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/steady_time.h"
#include "worker/base/to_proto.h"

namespace orcd {
namespace {

using Span = SpanExporter::Span;
using SpanStatus = opentelemetry::proto::trace::v1::Status;

std::string Bytes(const auto& id) {
  return std::string(reinterpret_cast<const char*>(id.data()), id.size());
}

// Converts a time of the SteadyNow clock to the wall clock. Call it once for all times that belong
// together: the clocks do not agree to the nanosecond.
absl::Time ToWallClock(absl::Time steady) { return absl::Now() - (SteadyNow() - steady); }

// Makes a span of the trace; the caller sets the id of its parent.
Span MakeSpan(const TraceContext& trace, const SpanId& id, std::string_view name, absl::Time begin,
              absl::Time end) {
  Span span;
  span.set_trace_id(Bytes(trace.trace_id));
  span.set_span_id(Bytes(id));
  span.set_trace_state(trace.state);
  span.set_flags(1);
  span.set_name(std::string(name));
  span.set_kind(Span::SPAN_KIND_INTERNAL);
  span.set_start_time_unix_nano(static_cast<uint64_t>(absl::ToUnixNanos(begin)));
  span.set_end_time_unix_nano(static_cast<uint64_t>(absl::ToUnixNanos(std::max(begin, end))));
  return span;
}

void AddAttribute(Span& span, const char* key, const std::string& value) {
  auto* attribute = span.add_attributes();
  attribute->set_key(key);
  attribute->mutable_value()->set_string_value(value);
}

void AddAttribute(Span& span, const char* key, int64_t value) {
  auto* attribute = span.add_attributes();
  attribute->set_key(key);
  attribute->mutable_value()->set_int_value(value);
}

// Makes the span of a call of orcd.v1.Worker.
Span MakeCallSpan(const TraceContext& trace, const SpanId& id, const std::string& method,
                  absl::Time begin, absl::Time end, const absl::Status& status) {
  Span span = MakeSpan(trace, id, "orcd.v1.Worker/" + method, begin, end);
  span.set_kind(Span::SPAN_KIND_SERVER);
  if (trace.has_parent()) span.set_parent_span_id(Bytes(trace.parent));
  AddAttribute(span, "rpc.system", "grpc");
  AddAttribute(span, "rpc.service", "orcd.v1.Worker");
  AddAttribute(span, "rpc.method", method);
  AddAttribute(span, "rpc.grpc.status_code", static_cast<int64_t>(status.code()));
  if (!status.ok()) {
    span.mutable_status()->set_code(SpanStatus::STATUS_CODE_ERROR);
    // Record the reason alone: messages may quote the client's input.
    AddAttribute(span, "error.type", GetErrorDetails(status).reason);
  }
  return span;
}

}  // namespace

class Telemetry::Request final : public RequestObserver {
 public:
  Request(Telemetry& telemetry, const TraceContext& trace, const std::string& request_id,
          const std::string& model_id, absl::Time arrival)
      : telemetry_(telemetry),
        trace_(trace),
        request_id_(request_id),
        model_id_(model_id),
        arrival_(arrival),
        last_(arrival) {}

  void OnTokens(int tokens, absl::Time now) override {
    if (tokens == 0) return;
    if (counted_ == 0) {
      telemetry_.metrics_.OnFirstToken(now - arrival_);
      telemetry_.metrics_.OnTokens(tokens, absl::ZeroDuration(), /*first=*/true);
    } else {
      telemetry_.metrics_.OnTokens(tokens, now - last_, /*first=*/false);
    }
    counted_ += tokens;
    last_ = now;
  }

  void OnRefused() override { refused_ = true; }

  void OnEnded(const FinishedEvent& event, const absl::Status& status) override {
    const absl::Time now = SteadyNow();
    const std::string reason = GetErrorDetails(status).reason;
    if (refused_) {
      telemetry_.metrics_.OnRequestRefused(status.code(), reason);
    } else {
      const std::string finish_reason =
          event.status.ok() ? v1::FinishReason_Name(ToProto(event.reason)) : "none";
      telemetry_.metrics_.OnRequestEnded(event, status.code(), finish_reason, now - arrival_,
                                         event.generated_tokens - counted_);
    }
    if (telemetry_.exporter_ != nullptr && trace_.sampled) Export(event, status, now);
  }

  std::string trace_id() const override { return ToHex(trace_.trace_id); }

 private:
  void Export(const FinishedEvent& event, const absl::Status& status, absl::Time now) {
    const SpanId id = MakeSpanId();
    std::vector<Span> spans;
    absl::Time begin = ToWallClock(arrival_);
    spans.push_back(MakeCallSpan(trace_, id, "Generate", begin, begin + (now - arrival_), status));
    AddAttribute(spans[0], "orcd.request_id", request_id_);
    AddAttribute(spans[0], "gen_ai.request.model", model_id_);
    AddAttribute(spans[0], "gen_ai.usage.input_tokens", int64_t{event.prompt_tokens});
    AddAttribute(spans[0], "gen_ai.usage.output_tokens", int64_t{event.generated_tokens});
    const auto add_phase = [&](std::string_view name, absl::Duration took) {
      spans.push_back(MakeSpan(trace_, MakeSpanId(), name, begin, begin + took));
      spans.back().set_parent_span_id(Bytes(id));
      begin += took;
    };
    if (!refused_) add_phase("queue", event.queue_time);
    if (event.generated_tokens > 0) {
      add_phase("prefill", event.prefill_time);
      add_phase("decode", event.decode_time);
    }
    telemetry_.exporter_->Add(std::move(spans));
  }

  Telemetry& telemetry_;
  const TraceContext trace_;
  const std::string request_id_;
  const std::string model_id_;
  const absl::Time arrival_;
  // Arrival of the last tokens.
  absl::Time last_;
  int counted_ = 0;
  bool refused_ = false;
};

std::shared_ptr<RequestObserver> Telemetry::ObserveRequest(const TraceContext& trace,
                                                           const std::string& request_id,
                                                           const std::string& model_id,
                                                           absl::Time arrival) {
  return std::make_shared<Request>(*this, trace, request_id, model_id, arrival);
}

std::function<void(bool found)> Telemetry::TimeRelease(Telemetry* telemetry) {
  if (telemetry == nullptr) return [](bool) {};
  return [metrics = &telemetry->metrics_, wished = SteadyNow()](bool found) {
    if (found) metrics->OnReleased(SteadyNow() - wished);
  };
}

void Telemetry::OnLoadEnded(const TraceContext& trace, const std::string& model, absl::Time begun,
                            const absl::Status& status) {
  const absl::Time now = SteadyNow();
  metrics_.OnLoadEnded(status, now - begun);
  if (exporter_ == nullptr || !trace.sampled) return;
  const absl::Time begin = ToWallClock(begun);
  Span span = MakeCallSpan(trace, MakeSpanId(), "Load", begin, begin + (now - begun), status);
  AddAttribute(span, "orcd.model_file", model);
  exporter_->Add(std::move(span));
}

}  // namespace orcd
