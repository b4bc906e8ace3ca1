// The architectures that this project computes: a table with a row for each.
#ifndef ORCD_RUNTIME_MODEL_ARCHITECTURES_H_
#define ORCD_RUNTIME_MODEL_ARCHITECTURES_H_

#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/gguf/gguf_reader.h"
#include "runtime/model/rope_override.h"
#include "runtime/model/spec.h"
#include "runtime/model/weights.h"

namespace orcd {

// A dimension of a tensor, in terms of the spec.
enum class Dim {
  kOne,
  kHidden,
  kTwiceHidden,
  kVocab,
  kQ,
  kQRows,
  kKv,
  kHeads,
  kHeadDim,
  kFfn,
  kExperts,
  kExpertFfn,
  kSharedFfn,
  kRopePairs,
  kDeltaChannels,
  kDeltaHeads,
  kDeltaHeadDim,
  kDeltaValues,
  kDeltaConv,
  // The rows of DeltaNetWeights::qkv_gate and of beta_alpha.
  kDeltaInputs,
  kDeltaFactors
};

// The part of a layer that a tensor belongs to. Layers without the part do not have the tensor.
enum class LayerPart {
  kLayer,
  kAttention,
  // QkNorm.
  kQkNorm,
  // DeltaNetSpec.
  kDeltaNet,
  // The FFN of a layer without experts.
  kFfn,
  // ExpertsSpec.
  kExperts,
  // As kExperts, with a matrix or a vector for each expert. Files hold them as one tensor with a
  // further dimension; older files hold `ffn_gate_exps.weight` as `ffn_gate.N.weight` for each
  // expert N, and its kin likewise.
  kEachExpert,
  kSharedExpert
};

// A tensor that files of an architecture hold.
struct TensorRule {
  // The tensor of layer N is `blk.N.` and this name.
  std::string_view name;
  // The member of the weights that views the tensor. A tensor of each layer has a member of
  // LayerWeights or of its ExpertWeights or DeltaNetWeights.
  std::variant<Matrix ModelWeights::*, Vector ModelWeights::*, Matrix LayerWeights::*,
               Vector LayerWeights::*, Matrix ExpertWeights::*, Vector ExpertWeights::*,
               std::vector<Matrix> ExpertWeights::*, Matrix DeltaNetWeights::*,
               Vector DeltaNetWeights::*>
      role;
  Dim rows;
  // kOne for a vector, [rows].
  Dim cols = Dim::kOne;
  LayerPart part = LayerPart::kLayer;
  // False if the tensor may be absent; the role is empty then.
  bool needed = true;
};

constexpr TensorRule Optional(TensorRule rule) {
  rule.needed = false;
  return rule;
}

struct Architecture {
  // `general.architecture`.
  std::string_view name;
  // As messages call a model of it, such as `Qwen2`.
  std::string_view family;
  // Models that run, as messages and documents list them.
  std::string_view models;
  // Files that the family's logits are compared with, for documents.
  std::string_view status;
  // kInvalidArgument, with the key and what to change, if a key is missing, of the wrong type, out
  // of range or inconsistent with another; kUnimplemented if the file asks for what is not computed
  // here.
  absl::StatusOr<ModelSpec> (*read)(const GgufReader& gguf);
  // The tensors: those that all architectures share, and further lists. A tensor may be in several.
  std::array<std::span<const TensorRule>, 8> tensors;
  // True if files may hold the gate and up matrices as one ffn_up, the gate's rows first.
  bool fused_ffn = false;
};

// The rows, each in arch/NAME.cc.
extern const Architecture kCohere2;
extern const Architecture kGemma2;
extern const Architecture kGemma3;
extern const Architecture kGlm4;
extern const Architecture kGlm4Moe;
extern const Architecture kGptOss;
extern const Architecture kGranite;
extern const Architecture kGraniteMoe;
extern const Architecture kLlama;
extern const Architecture kMistral3;
extern const Architecture kOlmo2;
extern const Architecture kPhi3;
extern const Architecture kQwen2;
extern const Architecture kQwen2Moe;
extern const Architecture kQwen3;
extern const Architecture kQwen35;
extern const Architecture kQwen35Moe;
extern const Architecture kQwen3Moe;
extern const Architecture kQwen3Next;
extern const Architecture kQwen3Vl;
extern const Architecture kSeedOss;
extern const Architecture kSmolLm3;

// All rows, in order of name.
std::span<const Architecture* const> AllArchitectures();

// The row of the file's architecture. kInvalidArgument if the file names none, kUnimplemented if
// there is no row for it or the file holds a vision projector.
absl::StatusOr<const Architecture*> FindArchitecture(const GgufReader& gguf);

// Describes the file's model, with `rope_scaling` applied if there is one. A window that is not
// shorter than the context is none. Errors are those of FindArchitecture, of the architecture's
// read and of OverrideRopeScaling, and kUnimplemented if every layer has a window.
absl::StatusOr<ModelSpec> ReadModelSpec(const GgufReader& gguf,
                                        const std::optional<RopeOverride>& rope_scaling = {});

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_ARCHITECTURES_H_
