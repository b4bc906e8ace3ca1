// The interface between a registration and its orchestrator: one call for each operation,
// independent of the wire protocol.
#ifndef ORCD_WORKER_FLEET_ORCHESTRATOR_LINK_H_
#define ORCD_WORKER_FLEET_ORCHESTRATOR_LINK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "orcd/v1/orchestrator.pb.h"
#include "worker/stream/call_cancellation.h"

namespace orcd {

// The worker's report to the orchestrator, sent with each call.
struct LinkReport {
  v1::WorkerStatus status;
  std::vector<v1::DirectiveOutcome> outcomes;
};

// An orchestrator's answer to Register or Heartbeat.
struct LinkReply {
  // Set by Register alone; an empty id grants nothing.
  std::string lease_id;
  // Counted from when the call was sent. Not positive: unchanged.
  absl::Duration ttl;
  std::vector<v1::Directive> directives;
  // False if the worker is, correctly for its state, in no list that routes requests to it.
  bool entered = true;
  // A problem that somebody should look at, although the lease holds; empty if there is none.
  std::string problem = {};
  // The instance that has the worker_id now; if set, the other fields count for nothing.
  std::string superseded_by = {};
};

// One orchestrator. One thread may call, except that any thread may cancel a call.
//
// A call ends with kCancelled once `cancel` is cancelled and with kDeadlineExceeded after
// `timeout`; a heartbeat ends with kNotFound if the lease is unknown. Other errors name their
// cause.
class OrchestratorLink {
 public:
  virtual ~OrchestratorLink() = default;

  // The address in the form of --orchestrator.
  virtual const std::string& address() const = 0;
  // True if a lease of this orchestrator is also one of the others of its kind: it is then enough
  // to give it back to one of them.
  virtual bool shares_leases() const = 0;
  // True if the orchestrator may have the worker in its list: it said so, or the outcome of the
  // call is not known.
  virtual bool maybe_entered() const = 0;

  virtual absl::StatusOr<LinkReply> Register(const LinkReport& report, absl::Duration timeout,
                                             CallCancellation& cancel) = 0;
  // `sequence` counts the heartbeats of a lease, from 1.
  virtual absl::StatusOr<LinkReply> Heartbeat(const std::string& lease_id, uint64_t sequence,
                                              const LinkReport& report, absl::Duration timeout,
                                              CallCancellation& cancel) = 0;
  // `lease_id` is empty if no lease holds.
  virtual absl::Status Deregister(const std::string& lease_id, const LinkReport& report,
                                  absl::Duration timeout, CallCancellation& cancel) = 0;
};

}  // namespace orcd

#endif  // ORCD_WORKER_FLEET_ORCHESTRATOR_LINK_H_
