// Makes gRPC calls whose request is arbitrary bytes.
#ifndef ORCD_INTEGRATION_TESTS_RAW_CALL_H_
#define ORCD_INTEGRATION_TESTS_RAW_CALL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "integration_tests/worker_client.h"

namespace orcd::testing {

// Sends `bytes` as the request and returns the call's status. `method` is the path, such as
// `/orcd.v1.Worker/Health`.
RpcError SendRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                 const std::string& bytes);

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_RAW_CALL_H_
