// grpc.reflection.v1 and v1alpha, from which clients without generated code, such as grpcurl, learn
// which services are served. https://github.com/grpc/grpc/blob/master/doc/server-reflection.md
#ifndef ORCD_WORKER_API_REFLECTION_H_
#define ORCD_WORKER_API_REFLECTION_H_

#include <grpcpp/impl/service_type.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

namespace orcd {

// Owns both services, which answer alike, from the compiled-in descriptors. gRPC's own plug-in
// knows v1alpha alone before 1.58, and keeps a thread for each open call. Must outlive the server
// that it is registered with. Any thread may call.
class Reflection {
 public:
  // Full names of the services that the server serves beside these two.
  explicit Reflection(std::vector<std::string> service_names);
  ~Reflection();

  // The services to register with the server.
  std::array<grpc::Service*, 2> services() const;

 private:
  class V1;
  class V1Alpha;

  const std::vector<std::string> service_names_;
  const std::unique_ptr<V1> v1_;
  const std::unique_ptr<V1Alpha> v1alpha_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_API_REFLECTION_H_
