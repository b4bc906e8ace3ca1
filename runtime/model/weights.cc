#include "runtime/model/weights.h"

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/base/error.h"
#include "runtime/model/model_error.h"

namespace orcd {
namespace {

std::string ShapeOf(const TensorView& tensor) {
  return absl::StrFormat("[%s]",
                         absl::StrJoin(tensor.ne.begin(), tensor.ne.begin() + tensor.n_dims, ", "));
}

// Takes tensors from a file by name, checks them, and finds at the end the tensors that were not
// taken.
class TensorTaker {
 public:
  explicit TensorTaker(const GgufReader& gguf) : gguf_(gguf) {}

  absl::StatusOr<Matrix> TakeMatrix(const std::string& name, int64_t rows, int64_t cols) {
    ORCD_ASSIGN_OR_RETURN(const TensorView* tensor, Take(name));
    ORCD_RETURN_IF_ERROR(
        CheckShape(*tensor, {static_cast<uint64_t>(cols), static_cast<uint64_t>(rows)}));
    if (FindTensorType(static_cast<uint32_t>(tensor->type)) == nullptr) {
      return UnsupportedModel(
          name,
          absl::StrFormat("tensor \"%s\" is of type %s, which is not computed here; use a file "
                          "of the model in another quantisation",
                          name, GetTensorTypeInfo(tensor->type).name));
    }
    return Matrix{.type = tensor->type,
                  .rows = rows,
                  .cols = cols,
                  .data = tensor->data.data(),
                  .row_bytes = static_cast<int64_t>(tensor->row_bytes())};
  }

  absl::StatusOr<Vector> TakeVector(const std::string& name, int64_t size) {
    ORCD_ASSIGN_OR_RETURN(const TensorView* tensor, Take(name));
    ORCD_RETURN_IF_ERROR(CheckShape(*tensor, {static_cast<uint64_t>(size)}));
    if (tensor->type != TensorType::kF32) {
      return InvalidModel(
          name,
          absl::StrFormat("tensor \"%s\" is of type %s; norms and biases have to be F32, convert "
                          "the model again",
                          name, GetTensorTypeInfo(tensor->type).name));
    }
    // Aligned: tensors lie at multiples of at least 8 bytes of a mapping, which starts a page.
    return Vector(reinterpret_cast<const float*>(tensor->data.data()), size);
  }

  // Fails for the first tensor of the file that was not taken.
  absl::Status CheckAllTaken(const ModelConfig& config) const {
    for (const TensorView& tensor : gguf_.tensors()) {
      if (taken_.contains(tensor.name)) continue;
      return UnsupportedModel(
          tensor.name,
          tensor.name.starts_with("rope_")
              ? absl::StrFormat("tensor %s scales RoPE, which is not computed here; use a file of "
                                "the model without it",
                                QuoteForMessage(tensor.name))
              : absl::StrFormat("tensor %s is no part of a Qwen2 model of %d layers; computing "
                                "without it would be another model, load one that this worker runs",
                                QuoteForMessage(tensor.name), config.layers));
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<const TensorView*> Take(const std::string& name) {
    const TensorView* tensor = gguf_.FindTensor(name);
    if (tensor == nullptr) {
      return InvalidModel(
          name,
          absl::StrFormat("tensor \"%s\" is missing; every Qwen2 model has it, so the file is "
                          "not whole or was made wrongly: fetch or convert it again",
                          name));
    }
    taken_.insert(tensor->name);
    return tensor;
  }

  static absl::Status CheckShape(const TensorView& tensor, const std::vector<uint64_t>& wanted) {
    bool same = true;
    for (size_t i = 0; i < tensor.ne.size(); ++i) {
      same &= tensor.ne[i] == (i < wanted.size() ? wanted[i] : 1);
    }
    if (same) return absl::OkStatus();
    return InvalidModel(
        tensor.name,
        absl::StrFormat(
            "tensor %s has the shape %s, where the metadata calls for [%s]; the file is "
            "damaged or was made wrongly, convert the model again",
            QuoteForMessage(tensor.name), ShapeOf(tensor), absl::StrJoin(wanted, ", ")));
  }

  const GgufReader& gguf_;
  std::set<std::string_view> taken_;
};

// Checks that embedding or head has one row for each token. Some files violate this, and the
// message of CheckShape would not say which side is wrong.
absl::Status CheckVocabRows(const GgufReader& gguf, const std::string& name, int vocab) {
  const TensorView* tensor = gguf.FindTensor(name);
  if (tensor == nullptr || tensor->row_count() == static_cast<uint64_t>(vocab)) {
    return absl::OkStatus();
  }
  return InvalidModel(
      name,
      absl::StrFormat("tensor \"%s\" has %d rows and tokenizer.ggml.tokens %d tokens; they have "
                      "to be equal (the matrix is not to be cut, the vocabulary is padded "
                      "instead), convert the model again",
                      name, tensor->row_count(), vocab));
}

absl::StatusOr<LayerWeights> TakeLayer(TensorTaker& taker, const ModelConfig& config, int layer) {
  const auto name = [layer](std::string_view part) {
    return absl::StrFormat("blk.%d.%s", layer, part);
  };
  const int hidden = config.hidden;
  const int q_size = config.q_size();
  const int kv_size = config.kv_size();
  LayerWeights w;
  ORCD_ASSIGN_OR_RETURN(w.attn_norm, taker.TakeVector(name("attn_norm.weight"), hidden));
  ORCD_ASSIGN_OR_RETURN(w.attn_q, taker.TakeMatrix(name("attn_q.weight"), q_size, hidden));
  ORCD_ASSIGN_OR_RETURN(w.attn_k, taker.TakeMatrix(name("attn_k.weight"), kv_size, hidden));
  ORCD_ASSIGN_OR_RETURN(w.attn_v, taker.TakeMatrix(name("attn_v.weight"), kv_size, hidden));
  ORCD_ASSIGN_OR_RETURN(w.attn_q_bias, taker.TakeVector(name("attn_q.bias"), q_size));
  ORCD_ASSIGN_OR_RETURN(w.attn_k_bias, taker.TakeVector(name("attn_k.bias"), kv_size));
  ORCD_ASSIGN_OR_RETURN(w.attn_v_bias, taker.TakeVector(name("attn_v.bias"), kv_size));
  ORCD_ASSIGN_OR_RETURN(w.attn_output,
                        taker.TakeMatrix(name("attn_output.weight"), hidden, q_size));
  ORCD_ASSIGN_OR_RETURN(w.ffn_norm, taker.TakeVector(name("ffn_norm.weight"), hidden));
  ORCD_ASSIGN_OR_RETURN(w.ffn_gate, taker.TakeMatrix(name("ffn_gate.weight"), config.ffn, hidden));
  ORCD_ASSIGN_OR_RETURN(w.ffn_up, taker.TakeMatrix(name("ffn_up.weight"), config.ffn, hidden));
  ORCD_ASSIGN_OR_RETURN(w.ffn_down, taker.TakeMatrix(name("ffn_down.weight"), hidden, config.ffn));
  return w;
}

}  // namespace

absl::StatusOr<ModelWeights> ModelWeights::FromGguf(const GgufReader& gguf,
                                                    const ModelConfig& config) {
  ORCD_RETURN_IF_ERROR(CheckVocabRows(gguf, "token_embd.weight", config.vocab));
  ORCD_RETURN_IF_ERROR(CheckVocabRows(gguf, "output.weight", config.vocab));
  TensorTaker taker(gguf);
  ModelWeights weights;
  ORCD_ASSIGN_OR_RETURN(weights.token_embd,
                        taker.TakeMatrix("token_embd.weight", config.vocab, config.hidden));
  for (int layer = 0; layer < config.layers; ++layer) {
    ORCD_ASSIGN_OR_RETURN(LayerWeights layer_weights, TakeLayer(taker, config, layer));
    weights.layers.push_back(layer_weights);
  }
  ORCD_ASSIGN_OR_RETURN(weights.output_norm, taker.TakeVector("output_norm.weight", config.hidden));
  weights.tied = gguf.FindTensor("output.weight") == nullptr;
  if (weights.tied) {
    weights.output = weights.token_embd;
  } else {
    ORCD_ASSIGN_OR_RETURN(weights.output,
                          taker.TakeMatrix("output.weight", config.vocab, config.hidden));
  }
  ORCD_RETURN_IF_ERROR(taker.CheckAllTaken(config));
  return weights;
}

}  // namespace orcd
