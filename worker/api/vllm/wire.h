// A short name for the messages of vllm_engine.proto.
#ifndef ORCD_WORKER_API_VLLM_WIRE_H_
#define ORCD_WORKER_API_VLLM_WIRE_H_

#include "vllm/vllm_engine.pb.h"

namespace orcd {
namespace vllm_wire = ::vllm::grpc::engine;
}  // namespace orcd

#endif  // ORCD_WORKER_API_VLLM_WIRE_H_
