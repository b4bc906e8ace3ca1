// Steps that predict tokens along a text of which another program computed the predictions. For
// tests.
#ifndef ORCD_TESTING_ORACLE_PREDICTIONS_H_
#define ORCD_TESTING_ORACLE_PREDICTIONS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/backend/backend.h"
#include "runtime/backend/steps_for_test.h"
#include "runtime/sampling/token_mask.h"

namespace orcd {

// Runs one sequence over `tokens`, of a vocabulary of `vocab`: masks make each draw the next token,
// in steps with a prompt, with a token and with drafts, of which the last is wrong. Each step
// predicts two tokens, and `visit` gets its part and the position before that of its last draw.
inline void PredictAlong(Backend& backend, std::span<const int32_t> tokens, int vocab,
                         std::span<const int32_t> blocks,
                         const std::function<void(const PartResult& part, int row)>& visit) {
  const auto count = static_cast<int>(tokens.size());
  std::vector<std::vector<uint32_t>> only;
  for (const int32_t token : tokens) {
    only.emplace_back(TokenMask::WordsFor(vocab));
    only.back()[token / 32] = uint32_t{1} << token % 32;
  }
  constexpr int kDrafts = 3;
  int position = 0;
  for (int step = 0; position + 14 < count; ++step) {
    const int known = step % 4 == 0 ? 1 + step % 12 : 1;
    const int drafts = step % 2 == 1 ? kDrafts : 0;
    std::vector<int32_t> guesses(tokens.begin() + position + known,
                                 tokens.begin() + position + known + drafts);
    if (drafts > 0) guesses.back() = (guesses.back() + 1) % vocab;
    std::vector<TokenMask> masks;
    for (int i = 1; i <= drafts; ++i) masks.push_back({only[position + known + i]});
    StepSequence seq = ContinueSequence(0, position, tokens.subspan(position, known), blocks);
    if (position == 0) seq = StartSequence(0, tokens.first(known), blocks);
    seq.sample = true;
    seq.mask = {only[position + known]};
    seq.drafts = guesses;
    seq.draft_masks = masks;
    seq.predictions = 2;
    const StepResult result = RunStep(backend, {seq});
    ASSERT_EQ(result.parts.size(), 1u);
    const PartResult& part = result.parts.front();
    const int right = drafts > 0 ? drafts - 1 : 0;
    ASSERT_EQ(part.samples.size(), static_cast<size_t>(right) + 1);
    ASSERT_EQ(part.predictions.size(), 2u);
    position += known + right;
    visit(part, position - 1);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace orcd

#endif  // ORCD_TESTING_ORACLE_PREDICTIONS_H_
