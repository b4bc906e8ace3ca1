// The SubscribeKvEvents call, which sends a worker's load and prefix cache to a gateway as they
// change.
#ifndef ORCD_WORKER_API_VLLM_KV_EVENT_CALL_H_
#define ORCD_WORKER_API_VLLM_KV_EVENT_CALL_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>

#include "absl/status/statusor.h"
#include "worker/api/vllm/kv_event_feed.h"
#include "worker/api/vllm/wire.h"
#include "worker/host/model_host.h"

namespace orcd {

// Returns the stream, which deletes itself. It sends the present state, then changes about ten
// times a second, and the load when it changes and at least once a second. Fails with kOutOfRange
// (KV_EVENTS_NOT_KEPT) if the request wants to continue where another stream ended, and with the
// errors of KvEventFeeds::Subscribe. `may` returns an error once the caller may no longer
// subscribe. `host` and `feeds` must outlive the call.
absl::StatusOr<grpc::ServerWriteReactor<grpc::ByteBuffer>*> StartKvEventCall(
    grpc::CallbackServerContext* context, const vllm_wire::SubscribeKvEventsRequest& request,
    ModelHost& host, KvEventFeeds& feeds, std::function<absl::Status()> may);

}  // namespace orcd

#endif  // ORCD_WORKER_API_VLLM_KV_EVENT_CALL_H_
