// The address that --orchestrator names.
#ifndef ORCD_WORKER_FLEET_ORCHESTRATOR_ADDRESS_H_
#define ORCD_WORKER_FLEET_ORCHESTRATOR_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"

namespace orcd {

struct OrchestratorAddress {
  enum class Protocol {
    // host:port: gRPC, proto/orcd/v1/orchestrator.proto.
    kOrcd,
    // http://host:port or https://host:port: smg's list of workers.
    kSmg,
  };
  Protocol protocol = Protocol::kOrcd;
  // The text that was given, without a slash at its end.
  std::string text;
};

// Fails with kInvalidArgument, the problem and a correct form.
absl::StatusOr<OrchestratorAddress> ParseOrchestratorAddress(const std::string& text);

}  // namespace orcd

#endif  // ORCD_WORKER_FLEET_ORCHESTRATOR_ADDRESS_H_
