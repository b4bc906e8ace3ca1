// The keys and tensors that most architectures share: a decoder with RMS norms before attention and
// a gated FFN.
#ifndef ORCD_RUNTIME_MODEL_ARCH_DECODER_H_
#define ORCD_RUNTIME_MODEL_ARCH_DECODER_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/gguf/gguf_reader.h"
#include "runtime/model/architectures.h"

namespace orcd {

inline constexpr TensorRule kDecoderTensors[] = {
    {"token_embd.weight", &ModelWeights::token_embd, Dim::kVocab, Dim::kHidden},
    {"output_norm.weight", &ModelWeights::output_norm, Dim::kHidden},
    Optional({"output.weight", &ModelWeights::output, Dim::kVocab, Dim::kHidden}),
    {"attn_norm.weight", &LayerWeights::attn_norm, Dim::kHidden},
    {"attn_q.weight", &LayerWeights::attn_q, Dim::kQ, Dim::kHidden},
    {"attn_k.weight", &LayerWeights::attn_k, Dim::kKv, Dim::kHidden},
    {"attn_v.weight", &LayerWeights::attn_v, Dim::kKv, Dim::kHidden},
    {"attn_output.weight", &LayerWeights::attn_output, Dim::kHidden, Dim::kQ},
    {"ffn_norm.weight", &LayerWeights::ffn_norm, Dim::kHidden},
    {"ffn_gate.weight", &LayerWeights::ffn_gate, Dim::kFfn, Dim::kHidden},
    {"ffn_up.weight", &LayerWeights::ffn_up, Dim::kFfn, Dim::kHidden},
    {"ffn_down.weight", &LayerWeights::ffn_down, Dim::kHidden, Dim::kFfn},
};

// Describes a model whose layers are alike. Keys begin with `architecture` and a dot;
// `rope.freq_base` is 10000 if it is absent. Errors are those of Architecture::read.
absl::StatusOr<ModelSpec> ReadDecoder(const GgufReader& gguf, std::string_view architecture);

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_ARCH_DECODER_H_
