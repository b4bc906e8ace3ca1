#include "worker/vllm/kv_event_feed.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/error.h"

namespace orcd {

absl::Status KvEventsClosing() {
  return MakeError(absl::StatusCode::kUnavailable, "this worker goes, and its cache with it",
                   {.reason = "DRAINING"});
}

KvEventFeed::Subscription::Subscription(std::shared_ptr<KvEventFeed> feed)
    : feed_(std::move(feed)) {}

KvEventFeed::Subscription::~Subscription() {
  std::lock_guard lock(feed_->mutex_);
  std::erase(feed_->subscriptions_, this);
}

KvEventFeed::News KvEventFeed::Subscription::Take() {
  std::lock_guard lock(feed_->mutex_);
  News news = std::exchange(news_, {});
  news_.lost = news.lost;
  news_.gone = news.gone;
  return news;
}

std::unique_ptr<KvEventFeed::Subscription> KvEventFeed::Subscribe() {
  auto subscription = std::make_unique<Subscription>(shared_from_this());
  std::lock_guard lock(mutex_);
  subscription->news_.gone = gone_;
  if (listed_) {
    subscription->news_.all = index_.List();
    subscription->has_all_ = true;
  }
  subscriptions_.push_back(subscription.get());
  return subscription;
}

bool KvEventFeed::gone() const {
  std::lock_guard lock(mutex_);
  return gone_;
}

void KvEventFeed::OnStored(const FindableBlock& block) {
  std::lock_guard lock(mutex_);
  index_.Store(block, changes_);
  Publish();
}

void KvEventFeed::OnRemoved(const BlockHash& content) {
  std::lock_guard lock(mutex_);
  index_.Remove(content, changes_);
  Publish();
}

void KvEventFeed::OnListed() {
  std::lock_guard lock(mutex_);
  listed_ = true;
  for (Subscription* subscription : subscriptions_) {
    subscription->news_.all = index_.List();
    subscription->has_all_ = true;
  }
}

void KvEventFeed::OnGone() {
  std::lock_guard lock(mutex_);
  gone_ = true;
  index_ = {};
  for (Subscription* subscription : subscriptions_) {
    subscription->news_ = {};
    subscription->news_.gone = true;
  }
}

void KvEventFeed::Publish() {
  for (Subscription* subscription : subscriptions_) {
    News& news = subscription->news_;
    // What it is told of in the list needs no telling before.
    if (!subscription->has_all_ || news.lost) continue;
    if (news.changes.size() + changes_.size() > max_pending_) {
      news = {};
      news.lost = true;
      continue;
    }
    news.changes.insert(news.changes.end(), changes_.begin(), changes_.end());
  }
  changes_.clear();
}

absl::StatusOr<std::unique_ptr<KvEventFeeds::Subscriber>> KvEventFeeds::Subscribe() {
  if (*closing_) return KvEventsClosing();
  std::lock_guard lock(mutex_);
  if (*places_ >= limits_.max_subscribers) {
    return MakeError(absl::StatusCode::kResourceExhausted,
                     absl::StrCat("as many follow the prefix cache as may, ",
                                  limits_.max_subscribers, "; try again when one of them has left"),
                     {.reason = "TOO_MANY_SUBSCRIBERS", .subject = "kv_events:subscribers"});
  }
  ORCD_ASSIGN_OR_RETURN(const EngineLease lease, host_.Borrow(""));
  std::shared_ptr<KvEventFeed> feed = feed_.lock();
  if (feed == nullptr || feed->gone()) {
    feed = std::make_shared<KvEventFeed>(limits_.max_pending);
    feed_ = feed;
    lease.engine().ObserveBlocks(feed);
  }
  std::unique_ptr<Subscriber> subscriber(new Subscriber(places_, closing_));
  subscriber->subscription_ = feed->Subscribe();
  return subscriber;
}

}  // namespace orcd
