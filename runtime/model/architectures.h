// The architectures that this project computes: a table with a row for each.
#ifndef ORCD_RUNTIME_MODEL_ARCHITECTURES_H_
#define ORCD_RUNTIME_MODEL_ARCHITECTURES_H_

#include <array>
#include <span>
#include <string_view>
#include <variant>

#include "absl/status/statusor.h"
#include "runtime/gguf/gguf_reader.h"
#include "runtime/model/spec.h"
#include "runtime/model/weights.h"

namespace orcd {

// A dimension of a tensor, in terms of the spec.
enum class Dim { kOne, kHidden, kVocab, kQ, kKv, kFfn, kRopePairs };

// A tensor that files of an architecture hold.
struct TensorRule {
  // The tensor of layer N is `blk.N.` and this name.
  std::string_view name;
  // The member of the weights that views the tensor. A tensor of each layer has a member of
  // LayerWeights.
  std::variant<Matrix ModelWeights::*, Vector ModelWeights::*, Matrix LayerWeights::*,
               Vector LayerWeights::*>
      role;
  Dim rows;
  // kOne for a vector, [rows].
  Dim cols = Dim::kOne;
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
  // Models that run, as messages list them.
  std::string_view models;
  // kInvalidArgument, with the key and what to change, if a key is missing, of the wrong type, out
  // of range or inconsistent with another; kUnimplemented if the file asks for what is not computed
  // here.
  absl::StatusOr<ModelSpec> (*read)(const GgufReader& gguf);
  // The tensors that most architectures share, and this one's own.
  std::array<std::span<const TensorRule>, 2> tensors;
};

// The rows, each in arch/NAME.cc.
extern const Architecture kQwen2;
extern const Architecture kLlama;

// The row of the file's architecture. kInvalidArgument if the file names none, kUnimplemented if
// there is no row for it.
absl::StatusOr<const Architecture*> FindArchitecture(const GgufReader& gguf);

// Describes the file's model. Errors are those of FindArchitecture and of the architecture's read.
absl::StatusOr<ModelSpec> ReadModelSpec(const GgufReader& gguf);

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_ARCHITECTURES_H_
