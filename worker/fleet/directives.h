// Directives from an orchestrator, and their outcomes.
#ifndef ORCD_WORKER_FLEET_DIRECTIVES_H_
#define ORCD_WORKER_FLEET_DIRECTIVES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "orcd/v1/orchestrator.pb.h"

namespace orcd {

// Carries each directive out once, however often it is sent, and keeps its outcome until the
// orchestrator has received it. Loads and unloads run one after the other, in the order of their
// arrival; drains start at once. Any thread may call; nothing here waits for an action.
class Directives : public std::enable_shared_from_this<Directives> {
 public:
  using Done = std::function<void(const absl::Status&)>;

  // Each action returns at once and calls `done` once, before it returns or later from any thread.
  struct Actions {
    std::function<void(const v1::LoadRequest&, Done)> load;
    std::function<void(const v1::UnloadRequest&, Done)> unload;
    std::function<void(const v1::DrainRequest&, Done)> drain;
  };

  // Outcomes to include in one call to the orchestrator.
  struct Report {
    std::vector<v1::DirectiveOutcome> outcomes;
    // Number of changes when the report was made; OnReported needs it.
    uint64_t as_of = 0;
  };

  // Directives that may wait behind the load or unload under way; more are refused.
  static constexpr size_t kMaxQueued = 64;
  // Ended directives whose ids are remembered.
  static constexpr size_t kMaxRemembered = 1024;
  // Outcomes in one report; the others wait for the next.
  static constexpr size_t kMaxReported = 128;

  // `on_change` is called when an outcome changes, from the thread that changed it. It must neither
  // block nor call back.
  static std::shared_ptr<Directives> Create(Actions actions, std::function<void()> on_change);

  Directives(const Directives&) = delete;
  Directives& operator=(const Directives&) = delete;

  // Takes the directives of a reply. Returns true if a new one among them asks the worker to
  // register again.
  bool Take(const std::vector<v1::Directive>& directives);

  Report MakeReport() const;
  // Call when the orchestrator has received `report`: its ended directives are not reported again.
  void OnReported(const Report& report);

  // Begins no more directives. Once this returns, `on_change` is not called any more.
  void Close();

 private:
  struct Record {
    v1::DirectiveOutcome outcome;
    // Value of changes_ at this record's last change.
    uint64_t changed = 0;
    bool reported = false;
  };

  Directives(Actions actions, std::function<void()> on_change);

  bool TakeOne(const v1::Directive& directive);
  void RunNext();
  void OnEnded(const std::string& id, bool in_turn, const absl::Status& status);
  Done DoneOf(const std::string& id, bool in_turn);
  // The caller holds mutex_.
  void SetState(const std::string& id, v1::DirectiveOutcome::State state);
  void SetEnded(const std::string& id, const absl::Status& status);

  const Actions actions_;

  // Guards the members below.
  mutable std::mutex mutex_;
  std::function<void()> on_change_;
  std::map<std::string, Record> records_;
  // Ids of ended directives, oldest first.
  std::deque<std::string> ended_;
  uint64_t changes_ = 0;
  // Loads and unloads that wait for their turn.
  std::deque<v1::Directive> queue_;
  bool running_ = false;
  bool closed_ = false;
};

}  // namespace orcd

#endif  // ORCD_WORKER_FLEET_DIRECTIVES_H_
