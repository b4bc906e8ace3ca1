// The keys and tensors that the models with gated delta nets share.
#ifndef ORCD_RUNTIME_MODEL_ARCH_DELTA_NET_H_
#define ORCD_RUNTIME_MODEL_ARCH_DELTA_NET_H_

#include "absl/status/status.h"
#include "runtime/model/arch/decoder.h"

namespace orcd {

inline constexpr TensorRule kDeltaNetTensors[] = {
    {"ssm_conv1d.weight", &DeltaNetWeights::conv, Dim::kDeltaChannels, Dim::kDeltaConv,
     LayerPart::kDeltaNet},
    {"ssm_a", &DeltaNetWeights::a, Dim::kDeltaHeads, Dim::kOne, LayerPart::kDeltaNet},
    {"ssm_dt.bias", &DeltaNetWeights::dt_bias, Dim::kDeltaHeads, Dim::kOne, LayerPart::kDeltaNet},
    {"ssm_norm.weight", &DeltaNetWeights::norm, Dim::kDeltaHeadDim, Dim::kOne,
     LayerPart::kDeltaNet},
    {"ssm_out.weight", &DeltaNetWeights::output, Dim::kHidden, Dim::kDeltaValues,
     LayerPart::kDeltaNet},
};

// Reads the keys of the delta nets, and which layers have one: those that
// `attention.recurrent_layers` says, as a bool for each block of the file, or in files without it
// all but every `full_attention_interval`-th. The layers come from ReadDecoder with kPredictLayers.
// Errors are those of Architecture::read; kUnimplemented if every layer is recurrent.
absl::Status ReadDeltaNets(const Keys& keys, HeadPairing pairing, ModelSpec& spec);

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_ARCH_DELTA_NET_H_
