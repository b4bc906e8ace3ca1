// Sampling parameters under vLLM's names, from JSON or from a request's parameters.
#ifndef ORCD_WORKER_API_KSERVE_SAMPLING_PARAMETERS_H_
#define ORCD_WORKER_API_KSERVE_SAMPLING_PARAMETERS_H_

#include <string>
#include <string_view>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "inference/grpc_service.pb.h"
#include "runtime/constraint/ordered_json.h"
#include "worker/api/orcd/request_builder.h"

namespace orcd::kserve {

// Collects the sampling parameters of one request. A parameter that is absent, or null under any
// name, keeps the default that worker.proto gives. A number may be sent as text, as Triton's own
// examples do. All errors are kInvalidArgument and name the parameter: INVALID_FIELD, or a reason
// of ParseStructuralTag. For one thread.
class SamplingParameters {
 public:
  // `request` receives the parameters and must outlive this.
  explicit SamplingParameters(RequestBuilder& request) : request_(request) {}

  // Adds the input `sampling_parameters`, a JSON object.
  absl::Status AddJson(const std::string& json);
  // Adds one of the request's `parameters`.
  absl::Status AddParameter(const std::string& name, const inference::InferParameter& value);

 private:
  absl::Status Add(std::string_view source, const std::string& name, const OrderedJson& value);

  RequestBuilder& request_;
  // Names of the parameters added so far.
  absl::flat_hash_set<std::string> seen_;
};

}  // namespace orcd::kserve

#endif  // ORCD_WORKER_API_KSERVE_SAMPLING_PARAMETERS_H_
