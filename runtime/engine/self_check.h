// Checks once, at load, that a backend computes the model correctly.
#ifndef ORCD_RUNTIME_ENGINE_SELF_CHECK_H_
#define ORCD_RUNTIME_ENGINE_SELF_CHECK_H_

#include "absl/status/status.h"
#include "runtime/backend/backend.h"
#include "runtime/backend/layer_reference.h"
#include "runtime/base/load_observer.h"
#include "runtime/model/model.h"

namespace orcd {

// Tokens that SelfCheck runs; fewer if the model's or the backend's context or the KV cache holds
// fewer.
inline constexpr int kSelfCheckTokens = 8;
// Most tokens for one call of the reference. A step in which SelfCheck chooses the experts has as
// many, if the backend allows them and there are so many to send through all experts.
inline constexpr int kSelfCheckReferenceTokens = 64;

// Runs a fixed token sequence through the backend: first all at once, or in the fewest steps that
// the backend allows, inspecting every activation; then, as in service, one token a step; then as a
// prompt. Returns kInternal (reason SELF_CHECK_FAILED), naming layer and operation, if
// - an activation is NaN or infinite;
// - a layer, or the head at the first and last positions, differs from the output of `reference` on
//   the same input (null: not compared). The first and the last layer are compared with all
//   tokens, the layers between with two, so that the reference computes little more than a step of
//   two tokens (0.09 s of a core with AVX-512 for 0.5B weights in Q4_K_M, 2026-11-25);
// - the first or the last layer that has experts does so when the check chooses the experts
//   (ActivationTap::Replace) and sends a token through each of them, but for those that no token
//   can take because of their selection bias (ForceEachExpert). For 128 experts, of which a token
//   takes 8, that is one step of 16 tokens, and the reference reads the weights of two layers once.
//   Otherwise the reference chooses experts by the backend's logits;
// - a token takes other experts than the check chose for it;
// - the logits do not distinguish tokens;
// - steps of one token, or the prompt step, draw tokens that disagree with the logits of the full
//   run; or a step of one token gives other logits.
// Uses slot 0 and the first KV blocks, which must be unused. Reports LoadStage::kSelfCheck; returns
// kCancelled if the observer cancels.
absl::Status SelfCheck(const Model& model, Backend& backend, LayerReference* reference,
                       LoadObserver& observer);

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_SELF_CHECK_H_
