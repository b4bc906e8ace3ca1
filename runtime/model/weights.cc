#include "runtime/model/weights.h"

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/base/error.h"
#include "runtime/model/architectures.h"
#include "runtime/model/model_error.h"

namespace orcd {
namespace {

std::string ShapeOf(const TensorView& tensor) {
  return absl::StrFormat("[%s]",
                         absl::StrJoin(tensor.ne.begin(), tensor.ne.begin() + tensor.n_dims, ", "));
}

uint64_t SizeOf(Dim dim, const ModelSpec& spec, const LayerSpec& layer) {
  switch (dim) {
    case Dim::kOne:
      return 1;
    case Dim::kHidden:
      return spec.hidden;
    case Dim::kVocab:
      return spec.vocab;
    case Dim::kQ:
      return layer.q_size();
    case Dim::kKv:
      return layer.kv_size();
    case Dim::kFfn:
      return layer.ffn;
    case Dim::kRopePairs:
      return layer.head_dim / 2;
  }
  return 0;
}

absl::Status SetRole(const TensorView& tensor, Matrix& matrix) {
  if (FindTensorType(static_cast<uint32_t>(tensor.type)) == nullptr) {
    return UnsupportedModel(
        tensor.name,
        absl::StrFormat("tensor \"%s\" is of type %s, which is not computed here; use a file "
                        "of the model in another quantisation",
                        tensor.name, GetTensorTypeInfo(tensor.type).name));
  }
  matrix = {.type = tensor.type,
            .rows = static_cast<int64_t>(tensor.ne[1]),
            .cols = static_cast<int64_t>(tensor.ne[0]),
            .data = tensor.data.data(),
            .row_bytes = static_cast<int64_t>(tensor.row_bytes())};
  return absl::OkStatus();
}

absl::Status SetRole(const TensorView& tensor, Vector& vector) {
  if (tensor.type != TensorType::kF32) {
    return InvalidModel(
        tensor.name,
        absl::StrFormat("tensor \"%s\" is of type %s; norms and biases have to be F32, convert "
                        "the model again",
                        tensor.name, GetTensorTypeInfo(tensor.type).name));
  }
  // Aligned: tensors lie at multiples of at least 8 bytes of a mapping, which starts a page.
  vector = Vector(reinterpret_cast<const float*>(tensor.data.data()), tensor.ne[0]);
  return absl::OkStatus();
}

// Takes tensors from a file by an architecture's rules, checks them, and finds at the end the
// tensors that were not taken.
class TensorTaker {
 public:
  TensorTaker(const GgufReader& gguf, const Architecture& architecture, const ModelSpec& spec)
      : gguf_(gguf), architecture_(architecture), spec_(spec) {}

  absl::Status Take(const TensorRule& rule, ModelWeights& weights) {
    return std::visit(
        [&](auto role) -> absl::Status {
          if constexpr (requires { weights.*role; }) {
            return TakeOne(rule, std::string(rule.name), spec_.layers[0], weights.*role);
          } else {
            for (size_t i = 0; i < weights.layers.size(); ++i) {
              ORCD_RETURN_IF_ERROR(TakeOne(rule, absl::StrFormat("blk.%d.%s", i, rule.name),
                                           spec_.layers[i], weights.layers[i].*role));
            }
            return absl::OkStatus();
          }
        },
        rule.role);
  }

  // Fails for the first tensor of the file that was not taken.
  absl::Status CheckAllTaken() const {
    for (const TensorView& tensor : gguf_.tensors()) {
      if (taken_.contains(tensor.name)) continue;
      return UnsupportedModel(
          tensor.name,
          tensor.name.starts_with("rope_")
              ? absl::StrFormat("tensor %s scales RoPE, which is not computed here; use a file of "
                                "the model without it",
                                QuoteForMessage(tensor.name))
              : absl::StrFormat("tensor %s is no part of a %s model of %d layers; computing "
                                "without it would be another model, load one that this worker runs",
                                QuoteForMessage(tensor.name), architecture_.family,
                                spec_.num_layers()));
    }
    return absl::OkStatus();
  }

 private:
  // `Role` is Matrix or Vector.
  template <typename Role>
  absl::Status TakeOne(const TensorRule& rule, const std::string& name, const LayerSpec& layer,
                       Role& role) {
    const TensorView* tensor = gguf_.FindTensor(name);
    if (tensor == nullptr && !rule.needed) return absl::OkStatus();
    if (tensor == nullptr) {
      return InvalidModel(
          name, absl::StrFormat("tensor \"%s\" is missing; every %s model has it, so the file is "
                                "not whole or was made wrongly: fetch or convert it again",
                                name, architecture_.family));
    }
    taken_.insert(tensor->name);
    ORCD_RETURN_IF_ERROR(CheckShape(rule, *tensor, layer));
    return SetRole(*tensor, role);
  }

  absl::Status CheckShape(const TensorRule& rule, const TensorView& tensor,
                          const LayerSpec& layer) const {
    const uint64_t rows = SizeOf(rule.rows, spec_, layer);
    // Some files violate this, and the message below would not say which side is wrong.
    if (rule.rows == Dim::kVocab && tensor.row_count() != rows) {
      return InvalidModel(
          tensor.name,
          absl::StrFormat("tensor \"%s\" has %d rows and tokenizer.ggml.tokens %d tokens; they "
                          "have to be equal (the matrix is not to be cut, the vocabulary is padded "
                          "instead), convert the model again",
                          tensor.name, tensor.row_count(), rows));
    }
    std::vector<uint64_t> wanted = {rows};
    if (rule.cols != Dim::kOne) wanted.insert(wanted.begin(), SizeOf(rule.cols, spec_, layer));
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
  const Architecture& architecture_;
  const ModelSpec& spec_;
  std::set<std::string_view> taken_;
};

}  // namespace

absl::StatusOr<ModelWeights> ModelWeights::FromGguf(const GgufReader& gguf, const ModelSpec& spec) {
  ORCD_ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitecture(gguf));
  TensorTaker taker(gguf, *architecture, spec);
  ModelWeights weights;
  weights.layers.resize(spec.layers.size());
  for (const auto& rules : architecture->tensors) {
    for (const TensorRule& rule : rules) ORCD_RETURN_IF_ERROR(taker.Take(rule, weights));
  }
  weights.tied = weights.output.data == nullptr;
  if (weights.tied) weights.output = weights.token_embd;
  ORCD_RETURN_IF_ERROR(taker.CheckAllTaken());
  for (const float factor : weights.rope_factors) {
    if (factor > 0) continue;
    return InvalidModel(
        "rope_freqs.weight",
        absl::StrFormat("tensor \"rope_freqs.weight\" holds %g; RoPE divides by its "
                        "elements, which must be above zero, convert the model again",
                        factor));
  }
  return weights;
}

}  // namespace orcd
