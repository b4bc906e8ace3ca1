// The keys and tensors that the mixtures of experts share.
#ifndef ORCD_RUNTIME_MODEL_ARCH_EXPERTS_H_
#define ORCD_RUNTIME_MODEL_ARCH_EXPERTS_H_

#include "absl/status/statusor.h"
#include "runtime/model/arch/decoder.h"

namespace orcd {

inline constexpr TensorRule kExpertTensors[] = {
    {"ffn_gate_inp.weight", &ExpertWeights::router, Dim::kExperts, Dim::kHidden,
     LayerPart::kExperts},
    {"ffn_gate_exps.weight", &ExpertWeights::gate, Dim::kExpertFfn, Dim::kHidden,
     LayerPart::kEachExpert},
    {"ffn_up_exps.weight", &ExpertWeights::up, Dim::kExpertFfn, Dim::kHidden,
     LayerPart::kEachExpert},
    {"ffn_down_exps.weight", &ExpertWeights::down, Dim::kHidden, Dim::kExpertFfn,
     LayerPart::kEachExpert},
};

inline constexpr TensorRule kSharedExpertTensors[] = {
    {"ffn_gate_shexp.weight", &ExpertWeights::shared_gate, Dim::kSharedFfn, Dim::kHidden,
     LayerPart::kSharedExpert},
    {"ffn_up_shexp.weight", &ExpertWeights::shared_up, Dim::kSharedFfn, Dim::kHidden,
     LayerPart::kSharedExpert},
    {"ffn_down_shexp.weight", &ExpertWeights::shared_down, Dim::kHidden, Dim::kSharedFfn,
     LayerPart::kSharedExpert},
};

// ExpertsSpec::shared_gated.
inline constexpr TensorRule kSharedRouterTensors[] = {
    {"ffn_gate_inp_shexp.weight", &ExpertWeights::shared_router, Dim::kHidden, Dim::kOne,
     LayerPart::kSharedExpert},
};

// The properties that the experts of a family's files share.
struct ExpertsFamily {
  RouterScore score = RouterScore::kSoftmax;
  bool normalise = true;
  // True if `expert_gating_func` and `expert_weights_norm` decide, and the members above stand in
  // for missing keys. False if a file that says otherwise than they do is refused.
  bool by_keys = false;
  // Width of an expert in files without `expert_feed_forward_length`; 0: the key is needed.
  int ffn = 0;
};

// Reads the keys of a file that has experts, without those of a shared expert. kUnimplemented if
// the file asks for what the family does not have; other errors are those of Architecture::read.
absl::StatusOr<ExpertsSpec> ReadExperts(const Keys& keys, const ExpertsFamily& family);

// Gives the layers from `first` on `experts` in place of their FFN.
void SetExperts(const ExpertsSpec& experts, int first, ModelSpec& spec);

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_ARCH_EXPERTS_H_
