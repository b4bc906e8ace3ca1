#include "worker/api/orcd/cancel_requests.h"

#include <memory>
#include <utility>

namespace orcd {

void CancelRequests(ModelHost& host, Telemetry* telemetry, const std::vector<std::string>& ids,
                    std::function<void(bool found)> done) {
  CallThreads& threads = host.threads();
  // Before the engine is asked: a request that is not found here any more has reached the engine.
  bool was_unread = false;
  for (const std::string& id : ids) {
    if (threads.unread.Cancel(id)) was_unread = true;
  }
  absl::StatusOr<EngineLease> borrowed = host.Borrow("");
  if (!borrowed.ok()) {
    // Without an engine no other request is live.
    done(was_unread);
    return;
  }
  auto lease = std::make_shared<EngineLease>(*std::move(borrowed));
  Engine& engine = lease->engine();
  engine.CancelMany(ids, FinishReason::kCancelled,
                    [&threads, was_unread, done = std::move(done), lease = std::move(lease),
                     released = Telemetry::TimeRelease(telemetry)](int found) mutable {
                      lease = nullptr;
                      // The metrics take locks, and the engine thread must wait for none.
                      threads.writes.Do([found, was_unread, done = std::move(done),
                                         released = std::move(released)] {
                        released(found > 0);
                        done(found > 0 || was_unread);
                      });
                    });
}

}  // namespace orcd
