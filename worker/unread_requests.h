// Requests that arrived and that no thread has read yet.
#ifndef ORCD_WORKER_UNREAD_REQUESTS_H_
#define ORCD_WORKER_UNREAD_REQUESTS_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace orcd {

// A request waits for a thread before the engine knows it, under load for seconds. Whoever cancels
// it by its id meanwhile finds it here. Any thread may call.
class UnreadRequests {
 public:
  // One request, from its arrival until the engine has it or it is refused. It can be found for as
  // long as the ticket lives, which the UnreadRequests must outlive.
  class Ticket {
   public:
    Ticket(UnreadRequests* requests, std::string id);
    ~Ticket();

    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;

    // The request is to end. To be asked before the request is read, and again after the engine
    // has it: from then on the engine itself finds it.
    bool is_cancelled() const { return is_cancelled_; }

   private:
    friend class UnreadRequests;

    UnreadRequests* const requests_;
    const std::string id_;
    std::atomic<bool> is_cancelled_ = false;
  };

  // A request whose id nobody knows ("") is found by nobody.
  std::shared_ptr<Ticket> Add(std::string id);

  // Marks every request with this id; false where there is none.
  bool Cancel(const std::string& id);

  // The number of ids that can be found.
  size_t ids() const;

 private:
  mutable std::mutex mutex_;
  // Several calls may have brought the same id; all but one of them will be refused.
  absl::flat_hash_map<std::string, absl::flat_hash_set<Ticket*>> by_id_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_UNREAD_REQUESTS_H_
