// smg (https://github.com/lightseekorg/smg), which schedules on workers that speak
// vllm.grpc.engine.VllmEngine and keeps its list of them at /workers.
#ifndef ORCD_WORKER_FLEET_SMG_LINK_H_
#define ORCD_WORKER_FLEET_SMG_LINK_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/fleet/http_client.h"
#include "worker/fleet/orchestrator_link.h"
#include "worker/fleet/smg_workers.h"
#include "worker/security/tls.h"
#include "worker/security/watched_files.h"

namespace orcd {

// Watches a file that holds smg's API key and nothing else, and is read again when it changes.
// Fails at the start with kInvalidArgument (API_KEY_FILE_INVALID) if the content is not one key.
absl::StatusOr<LastGood<std::string>> WatchSmgApiKey(const std::string& path, FileWatcher& watcher);

// Keeps the worker in smg's list while it is ready, and out of it while it is not. smg grants no
// leases; a look at the list that finds the expected state renews the lease instead. One thread may
// call.
//
// Observed with smg 1.13: smg accepts an entry (202) before it has spoken to the worker. Once it
// has, the entry is in the list, under the id that the answer gave, and stays until smg's process
// ends. A URL is in the list once: a second POST gets 409. A DELETE of an entry that is not in the
// list yet gets 202 too and does nothing: smg continues to add the worker.
class SmgLink final : public OrchestratorLink {
 public:
  struct Options {
    // http://host:port or https://host:port, without a path.
    std::string orchestrator;
    // Address at which smg reaches the worker's gRPC server, as host:port.
    std::string address;
    // For https://; null: the system's authorities are trusted, and this worker shows no
    // certificate.
    std::shared_ptr<const ClientTls> tls = nullptr;
    // The value of smg's --api-key; nullopt: no key is sent.
    std::optional<LastGood<std::string>> api_key = std::nullopt;
    // Twice the time between two looks at the list.
    absl::Duration ttl = absl::Seconds(10);
  };

  explicit SmgLink(Options options);

  const std::string& address() const override { return options_.orchestrator; }
  bool shares_leases() const override { return false; }
  bool maybe_entered() const override { return maybe_entered_; }

  absl::StatusOr<LinkReply> Register(const LinkReport& report, absl::Duration timeout,
                                     CallCancellation& cancel) override;
  absl::StatusOr<LinkReply> Heartbeat(const std::string& lease_id, uint64_t sequence,
                                      const LinkReport& report, absl::Duration timeout,
                                      CallCancellation& cancel) override;
  absl::Status Deregister(const std::string& lease_id, const LinkReport& report,
                          absl::Duration timeout, CallCancellation& cancel) override;

 private:
  // Shared limits of the calls of one operation: its deadline, and the means to cancel it.
  struct Bounds {
    absl::Time deadline;
    CallCancellation& cancel;
  };
  absl::StatusOr<HttpResponse> Call(const std::string& method, const std::string& path,
                                    const std::string& body, const Bounds& bounds) const;
  absl::StatusOr<LinkReply> Enter(const LinkReport& report, const Bounds& bounds);
  // Removes a worker that is not ready from the list.
  absl::StatusOr<LinkReply> Leave(const Bounds& bounds);
  // Tells smg to take the worker out of its list if the worker is there. Returns the entry that
  // remains afterwards; nullopt if none is left or smg is draining it.
  absl::StatusOr<std::optional<SmgWorker>> TakeOut(const Bounds& bounds);
  // Deletes the entry id_. Clears id_ if smg does not know it.
  absl::Status Delete(const Bounds& bounds);
  // Returns the worker's entry, by id_ if that is known, or else from the whole list. Returns
  // nullopt if there is none.
  absl::StatusOr<std::optional<SmgWorker>> Find(const Bounds& bounds) const;
  absl::StatusOr<std::optional<SmgWorker>> FindById(const Bounds& bounds) const;
  absl::StatusOr<std::optional<SmgWorker>> FindInList(const Bounds& bounds) const;
  LinkReply Reply(bool entered) const;

  const Options options_;
  // The URL under which smg lists the worker.
  const std::string url_;

  bool maybe_entered_ = false;
  // smg's id of this worker; empty while it is not known.
  std::string id_;
  // The worker's model at the time it was entered: smg asks for it only once.
  std::string model_id_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_FLEET_SMG_LINK_H_
