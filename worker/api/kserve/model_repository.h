// Models as the Open Inference Protocol and Triton describe them: those that may be loaded, and the
// loaded one.
#ifndef ORCD_WORKER_API_KSERVE_MODEL_REPOSITORY_H_
#define ORCD_WORKER_API_KSERVE_MODEL_REPOSITORY_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <string>

#include "absl/status/statusor.h"
#include "inference/grpc_service.pb.h"
#include "orcd/v1/worker.pb.h"
#include "worker/base/logging.h"
#include "worker/host/model_host.h"
#include "worker/observe/telemetry.h"

namespace orcd::kserve {

// Lists the files of `model_dir`, and the model of `status` under its own name.
inference::RepositoryIndexResponse ListRepository(const std::string& model_dir,
                                                  const v1::WorkerStatus& status, bool only_ready);

// Returns true if `name` takes requests; kNotFound (MODEL_NOT_FOUND) if there is no such model.
absl::StatusOr<bool> IsReady(const std::string& model_dir, const v1::WorkerStatus& status,
                             const std::string& name);

inference::ModelMetadataResponse DescribeTensors(const std::string& name);
inference::ModelConfigResponse DescribeConfig(const std::string& name);

// kInvalidArgument (INVALID_FIELD) if no model is named or a parameter is unknown. As in Triton, a
// load of the loaded model loads the present content of its file: `replace` is set for it unless
// the request says otherwise.
absl::StatusOr<ModelHost::LoadSpec> ToLoadSpec(const inference::RepositoryModelLoadRequest& request,
                                               const std::string& model_dir,
                                               const v1::WorkerStatus& status);

struct UnloadSpec {
  std::string model_id;
  bool force = false;
};
absl::StatusOr<UnloadSpec> ToUnloadSpec(const inference::RepositoryModelUnloadRequest& request);

// Looks the model up and loads it, on threads of the host. Returns the reactor, which answers at
// the end and deletes itself; a client that goes away rolls the load back. `host`, `log` and
// `telemetry` must outlive the load; `telemetry` may be null.
grpc::ServerUnaryReactor* StartLoadCall(grpc::CallbackServerContext* context,
                                        grpc::ByteBuffer* response,
                                        inference::RepositoryModelLoadRequest request,
                                        const std::string& model_dir, ModelHost& host,
                                        const Logger& log, Telemetry* telemetry);

}  // namespace orcd::kserve

#endif  // ORCD_WORKER_API_KSERVE_MODEL_REPOSITORY_H_
