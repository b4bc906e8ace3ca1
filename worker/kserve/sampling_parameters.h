// Sampling parameters as vLLM names them, from JSON or from a request's parameters.
#ifndef ORCD_WORKER_KSERVE_SAMPLING_PARAMETERS_H_
#define ORCD_WORKER_KSERVE_SAMPLING_PARAMETERS_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "inference/grpc_service.pb.h"
#include "orcd/v1/worker.pb.h"

namespace orcd::kserve {

// Collects the sampling parameters of one request. A parameter that is absent, or null under any
// name, keeps the default that worker.proto gives. A number may come as text, as Triton's own
// examples send it. All errors are kInvalidArgument (INVALID_FIELD), naming the parameter. One
// thread.
class SamplingParameters {
 public:
  // What they are collected in; must outlive this.
  explicit SamplingParameters(v1::GenerateRequest& request) : request_(request) {}

  // The input `sampling_parameters`: a JSON object.
  absl::Status AddJson(const std::string& json);
  // One of the request's `parameters`.
  absl::Status AddParameter(const std::string& name, const inference::InferParameter& value);

 private:
  absl::Status Add(std::string_view source, const std::string& name, const nlohmann::json& value);

  v1::GenerateRequest& request_;
  // Names that came.
  absl::flat_hash_set<std::string> seen_;
};

}  // namespace orcd::kserve

#endif  // ORCD_WORKER_KSERVE_SAMPLING_PARAMETERS_H_
