// A compiler of constraints that compiles nothing.
#ifndef ORCD_WORKER_API_ORCD_RECORDING_COMPILER_FOR_TEST_H_
#define ORCD_WORKER_API_ORCD_RECORDING_COMPILER_FOR_TEST_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/constraint/constraint_compiler.h"

namespace orcd {

// Keeps what it is asked to compile. One thread.
class RecordingCompiler final : public ConstraintCompiler {
 public:
  struct Asked {
    ConstraintSpec spec;
    int samples = 0;
  };

  // An error is the answer to every Compile; else each gets a constraint that never becomes ready.
  explicit RecordingCompiler(absl::Status answer = absl::OkStatus()) : answer_(std::move(answer)) {}

  absl::StatusOr<std::shared_ptr<PendingConstraint>> Compile(const ConstraintSpec& spec,
                                                             int samples) override {
    asked_.push_back({.spec = spec, .samples = samples});
    if (!answer_.ok()) return answer_;
    return std::make_shared<Pending>();
  }
  ConstraintStats stats() const override { return {}; }

  const std::vector<Asked>& asked() const { return asked_; }

 private:
  class Pending final : public PendingConstraint {
   public:
    void OnReady(std::function<void()>) override {}
    bool ready() const override { return false; }
    absl::Status status() const override { return absl::OkStatus(); }
    std::unique_ptr<Constraint> Make() override { return nullptr; }
  };

  const absl::Status answer_;
  std::vector<Asked> asked_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_API_ORCD_RECORDING_COMPILER_FOR_TEST_H_
