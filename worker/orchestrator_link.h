// The seam between a registration and whom it registers with: one call each, whatever goes over the
// wire.
#ifndef ORCD_WORKER_ORCHESTRATOR_LINK_H_
#define ORCD_WORKER_ORCHESTRATOR_LINK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "orcd/v1/orchestrator.pb.h"
#include "worker/call_cancellation.h"

namespace orcd {

// What a call tells of the worker.
struct LinkReport {
  v1::WorkerStatus status;
  std::vector<v1::DirectiveOutcome> outcomes;
};

// What an orchestrator answered to Register or Heartbeat.
struct LinkReply {
  // Of Register alone; one without it grants nothing.
  std::string lease_id;
  // From when the call was sent. Not positive: as it was.
  absl::Duration ttl;
  std::vector<v1::Directive> directives;
  // False where the worker is, as it should be for its state, in no list that requests are sent by.
  bool entered = true;
  // What somebody should look at, although the lease holds; empty where nothing is wrong.
  std::string problem = {};
  // The instance that has the worker_id now; the rest counts for nothing then.
  std::string superseded_by = {};
};

// One orchestrator. One thread, but for the cancellation of a call.
//
// A call ends with kCancelled once `cancel` is, with kDeadlineExceeded after `timeout`, a heartbeat
// with kNotFound where the lease is unknown, and otherwise with what went wrong.
class OrchestratorLink {
 public:
  virtual ~OrchestratorLink() = default;

  // As --orchestrator names it.
  virtual const std::string& address() const = 0;
  // Whether a lease of this orchestrator is one of the others of its kind, too: then it is enough
  // to give it back to one of them.
  virtual bool shares_leases() const = 0;
  // Whether the orchestrator may have the worker in its list: it said so, or the outcome of the
  // call is not known.
  virtual bool maybe_entered() const = 0;

  virtual absl::StatusOr<LinkReply> Register(const LinkReport& report, absl::Duration timeout,
                                             CallCancellation& cancel) = 0;
  // `sequence` counts the heartbeats of a lease, from 1.
  virtual absl::StatusOr<LinkReply> Heartbeat(const std::string& lease_id, uint64_t sequence,
                                              const LinkReport& report, absl::Duration timeout,
                                              CallCancellation& cancel) = 0;
  // `lease_id` is empty where no lease holds.
  virtual absl::Status Deregister(const std::string& lease_id, const LinkReport& report,
                                  absl::Duration timeout, CallCancellation& cancel) = 0;
};

}  // namespace orcd

#endif  // ORCD_WORKER_ORCHESTRATOR_LINK_H_
