// The course of a drain.
#ifndef ORCD_WORKER_HOST_DRAIN_H_
#define ORCD_WORKER_HOST_DRAIN_H_

#include <algorithm>
#include <string>

#include "absl/time/time.h"
#include "orcd/v1/worker.pb.h"
#include "worker/base/to_proto.h"

namespace orcd {

// A drain admits requests for its settle time, lets those that it has admitted run until its end,
// and is over when none is left. Begins once and cannot be undone. Times are on the clock of
// SteadyNow. One thread at a time may call.
class Drain {
 public:
  // The requests end `timeout` after `settle`. Called again, can only bring that forward. If
  // `reason` is not empty, it takes the place of the one before.
  void Begin(absl::Time now, absl::Duration settle, absl::Duration timeout,
             const std::string& reason) {
    const absl::Duration limit = std::max(timeout, absl::ZeroDuration());
    if (!has_begun()) refuse_from_ = now + settle;
    end_at_ = std::min(end_at_, std::max(now, refuse_from_) + limit);
    if (!reason.empty()) reason_ = reason;
  }

  // Takes the next step, with so many `requests` left, and returns the time of the one after it.
  // Once that has passed, the requests must be ended.
  absl::Time Advance(absl::Time now, int requests) {
    if (!has_begun() || is_over_) return absl::InfiniteFuture();
    if (now < refuse_from_) return refuse_from_;
    is_over_ = requests == 0;
    return is_over_ ? absl::InfiniteFuture() : end_at_;
  }

  bool has_begun() const { return refuse_from_ < absl::InfiniteFuture(); }
  bool is_refusing(absl::Time now) const { return now >= refuse_from_; }
  bool is_over() const { return is_over_; }
  const std::string& reason() const { return reason_; }

  // `running` of the `requests` run, and the others wait.
  v1::DrainResponse Progress(absl::Time now, int running, int requests) const {
    v1::DrainResponse response;
    response.set_running_requests(running);
    response.set_waiting_requests(requests - running);
    if (!has_begun()) return response;
    response.set_safe_to_delete(is_over_);
    const absl::Duration left = is_over_ ? absl::ZeroDuration() : end_at_ - now;
    *response.mutable_remaining() = ToProto(std::max(left, absl::ZeroDuration()));
    return response;
  }

 private:
  absl::Time refuse_from_ = absl::InfiniteFuture();
  absl::Time end_at_ = absl::InfiniteFuture();
  bool is_over_ = false;
  std::string reason_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_HOST_DRAIN_H_
