// Calls whose request is bytes, whatever they are.
#ifndef ORCD_INTEGRATION_TESTS_RAW_CALL_H_
#define ORCD_INTEGRATION_TESTS_RAW_CALL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "integration_tests/worker_client.h"

namespace orcd::testing {

// How the call ends. `method` is its path, such as `/orcd.v1.Worker/Health`.
RpcError SendRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                 const std::string& bytes);

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_RAW_CALL_H_
