// Plans the use of a GPU's memory for a model before any of it is allocated.
#ifndef ORCD_CUDA_MEMORY_PLAN_H_
#define ORCD_CUDA_MEMORY_PLAN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/device.h"
#include "cuda/device_weights.h"
#include "cuda/forward.h"
#include "cuda/step_tables.h"
#include "runtime/backend/backend.h"
#include "runtime/backend/kv_plan.h"
#include "runtime/model/spec.h"
#include "runtime/model/weights.h"

namespace orcd::cuda {

// Most drafts of a sequence in a step, and of all together: with more tokens, a step takes longer
// than the drafts are worth.
inline constexpr int kMaxDrafts = 16;
inline constexpr int kMaxStepDrafts = 64;
// Most predictions of a sequence in a step.
inline constexpr int kMaxPredictions = kMaxDrafts;

// The recurrent states of a model's sequences (delta_net.h): one for each slot and, behind those,
// one for each cell of BackendInfo::state_cells.
struct StatePlan {
  // 0: the model has no recurrent layers.
  int64_t floats = 0;
  int slots = 0;
  int cells = 0;

  int64_t bytes_each() const { return floats * static_cast<int64_t>(sizeof(float)); }
  int64_t bytes() const { return (int64_t{slots} + cells) * bytes_each(); }
};

struct MemoryPlan {
  // The options asked for, with max_step_tokens chosen if it was 0, and fewer max_seqs if that was
  // allowed and needed.
  BackendOptions options;
  ForwardLimits forward;
  StepLimits step;
  // BackendInfo::max_step_drafts; 0: there are no drafts.
  int max_step_drafts = 0;

  uint64_t weights_bytes = 0;
  // Activations, and the tables of steps.
  uint64_t workspace_bytes = 0;
  // Buffers through which weights are uploaded, freed afterwards.
  uint64_t staging_bytes = 0;
  KvPlan kv;
  StatePlan states;

  uint64_t kv_bytes() const { return static_cast<uint64_t>(kv.bytes()); }
  uint64_t state_bytes() const { return static_cast<uint64_t>(states.bytes()); }
  // The sum of all that stays once the model is loaded.
  uint64_t bytes() const { return weights_bytes + workspace_bytes + kv_bytes() + state_bytes(); }
};

// `weights` are laid out, not uploaded. If they have a block that predicts tokens, `spec` has its
// layer too (WithBlock).
// The KV cache gets what weights, workspace, states and cells leave, if its size is not an option.
// kInvalidArgument naming the option that is out of range; kUnimplemented naming the shape, the
// number or the type of experts that the kernels do not take; kResourceExhausted with all the
// numbers, and the type of weights or the number of sequences that would fit, if the model does
// not.
absl::StatusOr<MemoryPlan> PlanMemory(const ModelSpec& spec, const DeviceWeights& weights,
                                      const BackendOptions& asked, const DeviceInfo& device);

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_MEMORY_PLAN_H_
