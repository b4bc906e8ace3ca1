// An orchestrator that speaks orcd.v1.
#ifndef ORCD_WORKER_FLEET_ORCD_LINK_H_
#define ORCD_WORKER_FLEET_ORCD_LINK_H_

#include <grpcpp/client_context.h>
#include <grpcpp/security/credentials.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "orcd/v1/orchestrator.grpc.pb.h"
#include "worker/fleet/orchestrator_link.h"
#include "worker/security/tls.h"

namespace orcd {

// Owns the channel. One thread may call.
class OrcdLink final : public OrchestratorLink {
 public:
  struct Options {
    // host:port of the orchestrator.
    std::string orchestrator;
    // Address at which others reach the worker's gRPC server, as host:port.
    std::string address;
    v1::Capabilities capabilities;
    // Null: plaintext.
    std::shared_ptr<const ClientTls> tls = nullptr;
    // Shortest wait before a call is tried again after a failure.
    absl::Duration retry_after = absl::Milliseconds(200);
  };

  explicit OrcdLink(Options options);

  const std::string& address() const override { return options_.orchestrator; }
  bool shares_leases() const override { return true; }
  bool maybe_entered() const override { return maybe_entered_; }

  absl::StatusOr<LinkReply> Register(const LinkReport& report, absl::Duration timeout,
                                     CallCancellation& cancel) override;
  absl::StatusOr<LinkReply> Heartbeat(const std::string& lease_id, uint64_t sequence,
                                      const LinkReport& report, absl::Duration timeout,
                                      CallCancellation& cancel) override;
  absl::Status Deregister(const std::string& lease_id, const LinkReport& report,
                          absl::Duration timeout, CallCancellation& cancel) override;

 private:
  using Stub = v1::Orchestrator::Stub;
  using Rpc = std::function<grpc::Status(Stub&, grpc::ClientContext*)>;

  // Returns a stub on the channel for the next call.
  Stub& UpToDateStub();
  grpc::Status MakeCall(absl::Duration timeout, CallCancellation& cancel, const Rpc& rpc);

  const Options options_;
  // Credentials of stub_'s channel.
  std::shared_ptr<grpc::ChannelCredentials> credentials_;
  std::unique_ptr<Stub> stub_;
  bool maybe_entered_ = false;
};

}  // namespace orcd

#endif  // ORCD_WORKER_FLEET_ORCD_LINK_H_
