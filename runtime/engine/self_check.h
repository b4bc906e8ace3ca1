// Whether a backend computes a model at all: asked once, at load, before anyone may rely on it.
#ifndef ORCD_RUNTIME_ENGINE_SELF_CHECK_H_
#define ORCD_RUNTIME_ENGINE_SELF_CHECK_H_

#include "absl/status/status.h"
#include "runtime/backend.h"
#include "runtime/layer_reference.h"
#include "runtime/load_observer.h"
#include "runtime/model/model.h"

namespace orcd {

// Tokens that SelfCheck runs, or as many as the backend takes of one sequence where these are
// fewer; and the most of a call of its reference.
inline constexpr int kSelfCheckTokens = 8;

// Runs a fixed token sequence through the backend: at once, or in as few steps as the backend's
// largest allows, with every activation looked at; then, as service does, a token a step, and as a
// prompt. kInternal (reason SELF_CHECK_FAILED), naming layer and operation, where
// - a NaN or an infinity comes out;
// - a layer, or the head at the first and last positions, differs from what `reference` (null:
// none)
//   makes of the same input: the first and the last layer with all tokens, those between with two,
//   so that the reference computes little more than a step of two tokens (0.09 s of a core with
//   AVX-512 for 0.5B weights in Q4_K_M, 2026-11-25);
// - the logits do not tell tokens apart;
// - steps of one token, or of the prompt, draw others than the logits of the whole say; or those of
//   one token give other logits.
// Uses slot 0 and the first KV blocks, which must be unused. Reports LoadStage::kSelfCheck;
// kCancelled when the observer says so.
absl::Status SelfCheck(const Model& model, Backend& backend, LayerReference* reference,
                       LoadObserver& observer);

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_SELF_CHECK_H_
