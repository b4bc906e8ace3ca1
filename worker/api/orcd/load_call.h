// The Load call: a load on the host's thread, reported to a client.
#ifndef ORCD_WORKER_API_ORCD_LOAD_CALL_H_
#define ORCD_WORKER_API_ORCD_LOAD_CALL_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <memory>

#include "orcd/v1/worker.pb.h"
#include "worker/base/logging.h"
#include "worker/host/model_host.h"
#include "worker/observe/telemetry.h"

namespace orcd {

ModelHost::LoadSpec ToLoadSpec(const v1::LoadRequest& request);

// Starts host.Load for a call, and reports the load to the log and to telemetry. `context` must
// live until this returns; `host`, `log` and `telemetry`, which may be null, must outlive the load.
void StartLoad(const grpc::CallbackServerContext& context, const ModelHost::LoadSpec& spec,
               ModelHost& host, const Logger& log, Telemetry* telemetry, ModelHost::LoadDone done,
               std::shared_ptr<LoadTask> task);

void LogUnloaded(const Logger& log, const v1::UnloadResponse& response);

// Starts the load and returns the stream that reports it at least every 250 ms. If the client goes
// away, the load is rolled back. The stream deletes itself. `host`, `log` and `telemetry`, which
// may be null, must outlive the load.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartLoadCall(grpc::CallbackServerContext* context,
                                                          const v1::LoadRequest& request,
                                                          ModelHost& host, const Logger& log,
                                                          Telemetry* telemetry);

}  // namespace orcd

#endif  // ORCD_WORKER_API_ORCD_LOAD_CALL_H_
