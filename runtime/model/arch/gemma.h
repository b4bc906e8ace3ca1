// The parts that Gemma's generations share.
#ifndef ORCD_RUNTIME_MODEL_ARCH_GEMMA_H_
#define ORCD_RUNTIME_MODEL_ARCH_GEMMA_H_

#include "runtime/model/arch/decoder.h"

namespace orcd {

inline constexpr std::string_view kFinalSoftcap = "final_logit_softcapping";
// Above every known softcap.
inline constexpr float kMaxSoftcap = 1e6f;

// Sets the embedding scale, post norms and activation. Scores are scaled by
// 1 / sqrt(hidden / heads) in a model of `layers_of_27b` layers, which nothing else in its file
// says, unless the file has a scale.
void SetGemma(const Keys& keys, int layers_of_27b, ModelSpec& spec);

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_ARCH_GEMMA_H_
