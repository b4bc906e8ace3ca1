#include "worker/stream/unread_requests.h"

#include <utility>

namespace orcd {

UnreadRequests::Ticket::Ticket(UnreadRequests* requests, std::string id)
    : requests_(requests), id_(std::move(id)) {
  if (id_.empty()) return;
  std::lock_guard lock(requests_->mutex_);
  requests_->by_id_[id_].insert(this);
}

UnreadRequests::Ticket::~Ticket() {
  if (id_.empty()) return;
  std::lock_guard lock(requests_->mutex_);
  const auto found = requests_->by_id_.find(id_);
  found->second.erase(this);
  if (found->second.empty()) requests_->by_id_.erase(found);
}

std::shared_ptr<UnreadRequests::Ticket> UnreadRequests::Add(std::string id) {
  return std::make_shared<Ticket>(this, std::move(id));
}

size_t UnreadRequests::ids() const {
  std::lock_guard lock(mutex_);
  return by_id_.size();
}

bool UnreadRequests::Cancel(const std::string& id) {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return false;
  for (Ticket* const ticket : found->second) ticket->is_cancelled_ = true;
  return true;
}

}  // namespace orcd
