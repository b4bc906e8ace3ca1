// Requests that have arrived and that no thread has parsed yet.
#ifndef ORCD_WORKER_STREAM_UNREAD_REQUESTS_H_
#define ORCD_WORKER_STREAM_UNREAD_REQUESTS_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace orcd {

// Finds requests that wait for a thread and that the engine does not know yet; under load they wait
// for seconds. A cancellation by id looks for them here. Any thread may call.
class UnreadRequests {
 public:
  // One request, from its arrival until the engine has it or it is refused. It can be found for as
  // long as the entry lives. The UnreadRequests must outlive the entry.
  class Entry {
   public:
    Entry(UnreadRequests* requests, std::string id);
    ~Entry();

    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

    // True if the request must end. Check before the request is parsed, and again after the engine
    // has it: from then on the engine itself finds it.
    bool is_cancelled() const { return is_cancelled_; }

   private:
    friend class UnreadRequests;

    UnreadRequests* const requests_;
    const std::string id_;
    std::atomic<bool> is_cancelled_ = false;
  };

  // A request without a known id ("") cannot be found.
  std::shared_ptr<Entry> Add(std::string id);

  // Marks every request with this id as cancelled; returns false if there is none.
  bool Cancel(const std::string& id);

  // Number of ids that can be found.
  size_t ids() const;

 private:
  mutable std::mutex mutex_;
  // Several calls may have brought the same id; all but one of them will be refused.
  absl::flat_hash_map<std::string, absl::flat_hash_set<Entry*>> by_id_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_STREAM_UNREAD_REQUESTS_H_
