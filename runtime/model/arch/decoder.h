// The keys and tensors that the architectures share: a decoder with a gated FFN.
#ifndef ORCD_RUNTIME_MODEL_ARCH_DECODER_H_
#define ORCD_RUNTIME_MODEL_ARCH_DECODER_H_

#include <initializer_list>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/model/arch/keys.h"
#include "runtime/model/architectures.h"

namespace orcd {

// Tensors of every architecture. Files may also hold them fused; see ModelWeights::FromGguf.
inline constexpr TensorRule kDecoderTensors[] = {
    {"token_embd.weight", &ModelWeights::token_embd, Dim::kVocab, Dim::kHidden},
    {"output_norm.weight", &ModelWeights::output_norm, Dim::kHidden},
    Optional({"output.weight", &ModelWeights::output, Dim::kVocab, Dim::kHidden}),
    {"attn_q.weight", &LayerWeights::attn_q, Dim::kQRows, Dim::kHidden, LayerPart::kAttention},
    {"attn_k.weight", &LayerWeights::attn_k, Dim::kKv, Dim::kHidden, LayerPart::kAttention},
    {"attn_v.weight", &LayerWeights::attn_v, Dim::kKv, Dim::kHidden, LayerPart::kAttention},
    Optional(
        {"attn_q.bias", &LayerWeights::attn_q_bias, Dim::kQRows, Dim::kOne, LayerPart::kAttention}),
    Optional(
        {"attn_k.bias", &LayerWeights::attn_k_bias, Dim::kKv, Dim::kOne, LayerPart::kAttention}),
    Optional(
        {"attn_v.bias", &LayerWeights::attn_v_bias, Dim::kKv, Dim::kOne, LayerPart::kAttention}),
    {"attn_output.weight", &LayerWeights::attn_output, Dim::kHidden, Dim::kQ,
     LayerPart::kAttention},
    Optional({"attn_output.bias", &LayerWeights::attn_output_bias, Dim::kHidden, Dim::kOne,
              LayerPart::kAttention}),
    {"ffn_gate.weight", &LayerWeights::ffn_gate, Dim::kFfn, Dim::kHidden, LayerPart::kFfn},
    {"ffn_up.weight", &LayerWeights::ffn_up, Dim::kFfn, Dim::kHidden, LayerPart::kFfn},
    {"ffn_down.weight", &LayerWeights::ffn_down, Dim::kHidden, Dim::kFfn, LayerPart::kFfn},
    Optional(
        {"ffn_gate.bias", &LayerWeights::ffn_gate_bias, Dim::kFfn, Dim::kOne, LayerPart::kFfn}),
    Optional({"ffn_up.bias", &LayerWeights::ffn_up_bias, Dim::kFfn, Dim::kOne, LayerPart::kFfn}),
    Optional(
        {"ffn_down.bias", &LayerWeights::ffn_down_bias, Dim::kHidden, Dim::kOne, LayerPart::kFfn}),
};

// Norms before attention and before the FFN, each of its own.
inline constexpr TensorRule kPreNorms[] = {
    {"attn_norm.weight", &LayerWeights::attn_norm, Dim::kHidden},
    {"ffn_norm.weight", &LayerWeights::ffn_norm, Dim::kHidden},
};

// As kPreNorms, in files that name the FFN's after attention.
inline constexpr TensorRule kPreNormsByAttention[] = {
    {"attn_norm.weight", &LayerWeights::attn_norm, Dim::kHidden},
    {"post_attention_norm.weight", &LayerWeights::ffn_norm, Dim::kHidden},
};

// Norms of what attention and the FFN add to the residual stream.
inline constexpr TensorRule kPostNorms[] = {
    {"post_attention_norm.weight", &LayerWeights::attn_post_norm, Dim::kHidden},
    {"post_ffw_norm.weight", &LayerWeights::ffn_post_norm, Dim::kHidden},
};

// QkNorm::kHead.
inline constexpr TensorRule kHeadNorms[] = {
    {"attn_q_norm.weight", &LayerWeights::attn_q_norm, Dim::kHeadDim, Dim::kOne,
     LayerPart::kQkNorm},
    {"attn_k_norm.weight", &LayerWeights::attn_k_norm, Dim::kHeadDim, Dim::kOne,
     LayerPart::kQkNorm},
};

// Biases of queries, keys and values in families that always have them.
inline constexpr TensorRule kQkvBiases[] = {
    {"attn_q.bias", &LayerWeights::attn_q_bias, Dim::kQ},
    {"attn_k.bias", &LayerWeights::attn_k_bias, Dim::kKv},
    {"attn_v.bias", &LayerWeights::attn_v_bias, Dim::kKv},
};

// Llama 3.1 and later. The tensor alone says that RoPE is scaled.
inline constexpr TensorRule kRopeFactors[] = {
    Optional({"rope_freqs.weight", &ModelWeights::rope_factors, Dim::kRopePairs}),
};

inline constexpr std::string_view kSlidingWindow = "attention.sliding_window";
inline constexpr std::string_view kExpertCount = "expert_count";
inline constexpr std::string_view kPredictLayers = "nextn_predict_layers";
inline constexpr std::string_view kFeedForward = "feed_forward_length";

// Describes a model whose layers are alike, with what the shared keys say: sizes, heads, RoPE and
// its scaling, the scale of scores, norm epsilon, vocabulary. `own_keys` names the keys of
// kGraphKeys (in decoder.cc), which change what is computed, and the kinds of models that the
// architecture reads itself (kExpertCount; of kPredictLayers the last layers are left out); if the
// file sets another one, the result is kUnimplemented. With kFeedForward that key may be missing,
// and the layers' `ffn` is 0 then. Other errors are those of Architecture::read.
absl::StatusOr<ModelSpec> ReadDecoder(const Keys& keys, RopeKind rope,
                                      std::initializer_list<std::string_view> own_keys = {},
                                      NormKind norm = NormKind::kRms);

// Tells which layers are local: those that `attention.sliding_window_pattern` says, as a bool for
// each layer or as a period n, in which every n-th layer is not local, and by `period` if the file
// does not have the key.
absl::StatusOr<std::vector<bool>> ReadLocalLayers(const Keys& keys, int layers, int period);

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_ARCH_DECODER_H_
