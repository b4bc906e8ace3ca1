// The block of a model that predicts the token after the next one, from the next token and the
// hidden state of the one before it (Gloeckle et al., "Multi-token prediction", 2024, in the form
// of DeepSeek-V3). Files hold it after the layers, as their `nextn` tensors.
#ifndef ORCD_RUNTIME_MODEL_PREDICT_BLOCK_H_
#define ORCD_RUNTIME_MODEL_PREDICT_BLOCK_H_

#include <optional>

#include "absl/status/statusor.h"
#include "runtime/gguf/gguf_reader.h"
#include "runtime/model/spec.h"
#include "runtime/model/weights.h"

namespace orcd {

// With token t at position p + 1 and h, the output of ModelWeights::output_norm at position p, the
// block's input is projection [norm(embedding of t; embedding_norm) | norm(h; hidden_norm)]. It
// passes the layer, which has keys and values of its own, then output_norm; that is the h of a
// further prediction, and `output` of it are the logits of the token at position p + 2.
struct PredictBlock {
  // Always of attention.
  LayerSpec spec;
  LayerWeights layer;
  Matrix projection;      // [hidden, 2 * hidden]
  Vector embedding_norm;  // [hidden]
  Vector hidden_norm;     // [hidden]
  // The block's own, or the model's.
  Vector output_norm;  // [hidden]
  Matrix token_embd;   // [vocab, hidden]
  Matrix output;       // [vocab, hidden]

  // The first of ModelSpec::skipped_layers; none if the file holds none or leaves out its tensors.
  // Errors are those of ModelWeights::FromGguf, which gave `weights`.
  static absl::StatusOr<std::optional<PredictBlock>> FromGguf(const GgufReader& gguf,
                                                              const ModelSpec& spec,
                                                              const ModelWeights& weights);
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_PREDICT_BLOCK_H_
