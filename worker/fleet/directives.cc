#include "worker/fleet/directives.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "worker/api/orcd/request_builder.h"
#include "worker/base/status_details.h"

namespace orcd {
namespace {

bool HasEnded(const v1::DirectiveOutcome& outcome) {
  return outcome.state() == v1::DirectiveOutcome::STATE_SUCCEEDED ||
         outcome.state() == v1::DirectiveOutcome::STATE_FAILED;
}

}  // namespace

std::shared_ptr<Directives> Directives::Create(Actions actions, std::function<void()> on_change) {
  return std::shared_ptr<Directives>(new Directives(std::move(actions), std::move(on_change)));
}

Directives::Directives(Actions actions, std::function<void()> on_change)
    : actions_(std::move(actions)), on_change_(std::move(on_change)) {}

bool Directives::Take(const std::vector<v1::Directive>& directives) {
  bool reregister = false;
  for (const v1::Directive& directive : directives) {
    if (TakeOne(directive)) reregister = true;
  }
  return reregister;
}

bool Directives::TakeOne(const v1::Directive& directive) {
  const std::string& id = directive.id();
  if (id.empty() || !CheckRequestId(id).ok()) return false;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return false;
    if (const auto known = records_.find(id); known != records_.end()) {
      // The directive was sent again: its outcome did not arrive, or was forgotten.
      known->second.reported = false;
      return false;
    }
    switch (directive.action_case()) {
      case v1::Directive::kLoad:
      case v1::Directive::kUnload:
        if (queue_.size() >= kMaxQueued) {
          SetEnded(id, MakeError(absl::StatusCode::kResourceExhausted,
                                 absl::StrCat(queue_.size(), " directives wait already, at most ",
                                              kMaxQueued, " may; send fewer at a time"),
                                 {.reason = "DIRECTIVES_FULL", .subject = "queue:directives"}));
          return false;
        }
        SetState(id, v1::DirectiveOutcome::STATE_QUEUED);
        queue_.push_back(directive);
        break;
      case v1::Directive::kDrain:
        SetState(id, v1::DirectiveOutcome::STATE_RUNNING);
        break;
      case v1::Directive::kReregister:
        SetEnded(id, absl::OkStatus());
        return true;
      case v1::Directive::ACTION_NOT_SET:
        SetEnded(id, InvalidField("action", "is none that this worker knows"));
        return false;
    }
  }
  if (directive.has_drain()) {
    actions_.drain(directive.drain(), DoneOf(id, /*in_turn=*/false));
  } else {
    RunNext();
  }
  return false;
}

void Directives::RunNext() {
  v1::Directive directive;
  {
    std::lock_guard lock(mutex_);
    if (running_ || closed_ || queue_.empty()) return;
    running_ = true;
    directive = std::move(queue_.front());
    queue_.pop_front();
    SetState(directive.id(), v1::DirectiveOutcome::STATE_RUNNING);
  }
  Done done = DoneOf(directive.id(), /*in_turn=*/true);
  if (directive.has_load()) {
    actions_.load(directive.load(), std::move(done));
  } else {
    actions_.unload(directive.unload(), std::move(done));
  }
}

Directives::Done Directives::DoneOf(const std::string& id, bool in_turn) {
  return [self = shared_from_this(), id, in_turn](const absl::Status& status) {
    self->OnEnded(id, in_turn, status);
  };
}

void Directives::OnEnded(const std::string& id, bool in_turn, const absl::Status& status) {
  {
    std::lock_guard lock(mutex_);
    if (in_turn) running_ = false;
    SetEnded(id, status);
  }
  RunNext();
}

void Directives::SetState(const std::string& id, v1::DirectiveOutcome::State state) {
  Record& record = records_[id];
  record.outcome.set_id(id);
  record.outcome.set_state(state);
  record.changed = ++changes_;
  record.reported = false;
  // Called with the mutex held, so that no call follows once Close has returned.
  if (!closed_) on_change_();
}

void Directives::SetEnded(const std::string& id, const absl::Status& status) {
  if (!status.ok()) *records_[id].outcome.mutable_error() = ToRpcStatus(status);
  SetState(
      id, status.ok() ? v1::DirectiveOutcome::STATE_SUCCEEDED : v1::DirectiveOutcome::STATE_FAILED);
  ended_.push_back(id);
  if (ended_.size() > kMaxRemembered) {
    records_.erase(ended_.front());
    ended_.pop_front();
  }
}

Directives::Report Directives::MakeReport() const {
  std::lock_guard lock(mutex_);
  Report report;
  report.as_of = changes_;
  for (const auto& [id, record] : records_) {
    if (report.outcomes.size() >= kMaxReported) break;
    if (!HasEnded(record.outcome) || !record.reported) report.outcomes.push_back(record.outcome);
  }
  return report;
}

void Directives::OnReported(const Report& report) {
  std::lock_guard lock(mutex_);
  for (const v1::DirectiveOutcome& outcome : report.outcomes) {
    const auto record = records_.find(outcome.id());
    if (record != records_.end() && record->second.changed <= report.as_of) {
      record->second.reported = true;
    }
  }
}

void Directives::Close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
}

}  // namespace orcd
