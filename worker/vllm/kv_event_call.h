// The SubscribeKvEvents call: a worker's load and prefix cache, told to a gateway as they change.
#ifndef ORCD_WORKER_VLLM_KV_EVENT_CALL_H_
#define ORCD_WORKER_VLLM_KV_EVENT_CALL_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>

#include "absl/status/statusor.h"
#include "worker/model_host.h"
#include "worker/vllm/kv_event_feed.h"
#include "worker/vllm/wire.h"

namespace orcd {

// The stream, which deletes itself: the state as it is, then what changes, about ten times a
// second, and the load when it changes and at least once a second. kOutOfRange (KV_EVENTS_NOT_KEPT)
// for a request that wants to go on where another stream ended; the errors of
// KvEventFeeds::Subscribe. `may` says whether the caller still may follow. `host` and `feeds` must
// outlive the call.
absl::StatusOr<grpc::ServerWriteReactor<grpc::ByteBuffer>*> StartKvEventCall(
    grpc::CallbackServerContext* context, const vllm_wire::SubscribeKvEventsRequest& request,
    ModelHost& host, KvEventFeeds& feeds, std::function<absl::Status()> may);

}  // namespace orcd

#endif  // ORCD_WORKER_VLLM_KV_EVENT_CALL_H_
