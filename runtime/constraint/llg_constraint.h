// A sequence's rule, applied by the constraint library.
#ifndef ORCD_RUNTIME_CONSTRAINT_LLG_CONSTRAINT_H_
#define ORCD_RUNTIME_CONSTRAINT_LLG_CONSTRAINT_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "runtime/constraint/llg_rule.h"
#include "runtime/constraint/llg_state.h"
#include "runtime/sampling/constraint.h"

namespace orcd {

// Mask allows only the next token of Forced() if there is one, while Accept takes any tokenization
// of the text that must come. The end ids are allowed exactly where the rule is fulfilled.
class LlgConstraint final : public Constraint {
 public:
  // Holds `held` for as long as it lives.
  LlgConstraint(std::shared_ptr<const LlgRule> rule, std::shared_ptr<const void> held);

  bool NeedsTokens(int ahead) const override { return ahead > 0; }
  TokenMask Mask(int ahead) override;
  void Accept(int32_t token) override;
  void ExpectRollbacks() override { expects_rollbacks_ = true; }
  void Rollback(int count) override;
  bool ReplaysToRollBack() const override { return replays_to_roll_back_; }
  bool Ended() const override;
  std::span<const int32_t> Forced() override;
  absl::Status status() const override { return status_; }

 private:
  // Tokens that must come. The tokenization is chosen where the run begins and stays, so that the
  // rest of a run is the same whether its beginning was appended, drawn or resumed.
  struct Run {
    static constexpr size_t kNever = std::numeric_limits<size_t>::max();

    // The number of tokens that were accepted before.
    size_t begin = 0;
    // At least one.
    std::vector<int32_t> tokens;
    // The number of its tokens after which another one was accepted.
    size_t left_at = kNever;
  };

  bool MayEnd() const;
  // The rest returns false if the state fails.
  //
  // Makes the state, which accepted no token yet.
  bool MakeState();
  // Appends the run that begins now, if there is one.
  bool AddRun();
  bool Step(int32_t token);
  // Computes a mask if the last one is long ago.
  bool Refuel();
  // Sets `words_`.
  bool ComputeMask();
  void FailByLibrary();

  const std::shared_ptr<const LlgRule> rule_;
  const std::shared_ptr<const void> held_;
  // Null before the first token: a request that waits, or whose rule begins later, needs none.
  std::unique_ptr<LlgState> state_;
  // The tokens that the state accepted: all but an end id.
  std::vector<int32_t> tokens_;
  bool has_end_ = false;
  // By their begin, which differ.
  std::vector<Run> runs_;
  // The mask of the present state, if has_mask_.
  std::vector<uint32_t> words_;
  bool has_mask_ = false;
  // Tokens that were accepted since the last mask.
  int steps_without_mask_ = 0;
  bool expects_rollbacks_ = false;
  bool replays_to_roll_back_ = false;
  absl::Status status_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_CONSTRAINT_LLG_CONSTRAINT_H_
