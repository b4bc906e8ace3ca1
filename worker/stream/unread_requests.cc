#include "worker/stream/unread_requests.h"

#include <utility>

namespace orcd {

UnreadRequests::Entry::Entry(UnreadRequests* requests, std::string id)
    : requests_(requests), id_(std::move(id)) {
  if (id_.empty()) return;
  std::lock_guard lock(requests_->mutex_);
  requests_->by_id_[id_].insert(this);
}

UnreadRequests::Entry::~Entry() {
  if (id_.empty()) return;
  std::lock_guard lock(requests_->mutex_);
  const auto found = requests_->by_id_.find(id_);
  found->second.erase(this);
  if (found->second.empty()) requests_->by_id_.erase(found);
}

std::shared_ptr<UnreadRequests::Entry> UnreadRequests::Add(std::string id) {
  return std::make_shared<Entry>(this, std::move(id));
}

size_t UnreadRequests::ids() const {
  std::lock_guard lock(mutex_);
  return by_id_.size();
}

bool UnreadRequests::Cancel(const std::string& id) {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return false;
  for (Entry* const entry : found->second) entry->is_cancelled_ = true;
  return true;
}

}  // namespace orcd
