// smg (https://github.com/lightseekorg/smg), which schedules on workers that speak
// vllm.grpc.engine.VllmEngine and keeps its list of them at /workers.
#ifndef ORCD_WORKER_SMG_LINK_H_
#define ORCD_WORKER_SMG_LINK_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/http_client.h"
#include "worker/orchestrator_link.h"
#include "worker/smg_workers.h"
#include "worker/tls.h"
#include "worker/watched_files.h"

namespace orcd {

// The API key that a file holds, and nothing else, read again when it changes. At the start
// kInvalidArgument (API_KEY_FILE_INVALID) where it is not one key.
absl::StatusOr<LastGood<std::string>> WatchSmgApiKey(const std::string& path, FileWatcher& watcher);

// Keeps the worker in smg's list while it is ready, and out of it while it is not. smg grants no
// leases: what stands for one is that a look at the list found what it should. One thread.
//
// Seen with smg 1.13: an entry is taken (202) before smg has spoken to the worker, and is in the
// list, under the id that the answer has, once it has; it ends with smg's process. A URL is in the
// list once: the second POST gets 409. A DELETE of an entry that is not in the list yet gets 202,
// too, and does nothing: smg goes on entering the worker.
class SmgLink final : public OrchestratorLink {
 public:
  struct Options {
    // http://host:port or https://host:port, without a path.
    std::string orchestrator;
    // Where smg reaches the worker's gRPC server, as host:port.
    std::string address;
    // For https://; null: the system's authorities, and no certificate of ours is shown.
    std::shared_ptr<const ClientTls> tls = nullptr;
    // As smg's --api-key; none is sent where there is none.
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
  // What the calls of one operation share: an end and whoever may bring it forward.
  struct Bounds {
    absl::Time deadline;
    CallCancellation& cancel;
  };
  absl::StatusOr<HttpResponse> Call(const std::string& method, const std::string& path,
                                    const std::string& body, const Bounds& bounds) const;
  absl::StatusOr<LinkReply> Enter(const LinkReport& report, const Bounds& bounds);
  // Of a worker that is not ready.
  absl::StatusOr<LinkReply> Leave(const Bounds& bounds);
  // Where smg has the worker it is told to take it out of its list. What it has of it then:
  // nothing, where none is left or one on its way out.
  absl::StatusOr<std::optional<SmgWorker>> TakeOut(const Bounds& bounds);
  // Of id_, which is forgotten where smg does not know it.
  absl::Status Delete(const Bounds& bounds);
  // The worker's entry: of id_ where that is known, or else of the whole list. Nothing where there
  // is none.
  absl::StatusOr<std::optional<SmgWorker>> Find(const Bounds& bounds) const;
  absl::StatusOr<std::optional<SmgWorker>> FindById(const Bounds& bounds) const;
  absl::StatusOr<std::optional<SmgWorker>> FindInList(const Bounds& bounds) const;
  LinkReply Reply(bool entered) const;

  const Options options_;
  // What smg calls the worker by.
  const std::string url_;

  bool maybe_entered_ = false;
  // smg's, of this worker; empty while it is not known.
  std::string id_;
  // The model that the worker had when it was entered: smg asks once.
  std::string model_id_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_SMG_LINK_H_
