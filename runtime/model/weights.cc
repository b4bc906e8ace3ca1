#include "runtime/model/weights.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/base/error.h"
#include "runtime/model/architectures.h"
#include "runtime/model/model_error.h"
#include "runtime/model/predict_block.h"

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
    case Dim::kTwiceHidden:
      return uint64_t{2} * spec.hidden;
    case Dim::kVocab:
      return spec.vocab;
    case Dim::kQ:
      return layer.q_size();
    case Dim::kQRows:
      return layer.q_rows();
    case Dim::kKv:
      return layer.kv_size();
    case Dim::kHeads:
      return layer.heads;
    case Dim::kHeadDim:
      return layer.head_dim;
    case Dim::kFfn:
      return layer.ffn;
    case Dim::kExperts:
      return layer.experts.count;
    case Dim::kExpertFfn:
      return layer.experts.ffn;
    case Dim::kSharedFfn:
      return layer.experts.shared_ffn;
    case Dim::kRopePairs: {
      // Layers without RoPE have no pairs.
      int dims = 0;
      for (const LayerSpec& any : spec.layers) dims = std::max(dims, any.rope.dims);
      return dims / 2;
    }
    case Dim::kDeltaChannels:
      return layer.delta.channels();
    case Dim::kDeltaHeads:
      return layer.delta.value_heads;
    case Dim::kDeltaHeadDim:
      return layer.delta.head_dim;
    case Dim::kDeltaValues:
      return layer.delta.value_size();
    case Dim::kDeltaConv:
      return layer.delta.conv;
    case Dim::kDeltaInputs:
      return uint64_t{0} + layer.delta.channels() + layer.delta.value_size();
    case Dim::kDeltaFactors:
      return uint64_t{2} * layer.delta.value_heads;
  }
  return 0;
}

bool Has(const LayerSpec& layer, LayerPart part) {
  switch (part) {
    case LayerPart::kLayer:
      return true;
    case LayerPart::kAttention:
      return !layer.recurrent();
    case LayerPart::kQkNorm:
      return !layer.recurrent() && layer.qk_norm != QkNorm::kNone;
    case LayerPart::kDeltaNet:
      return layer.recurrent();
    case LayerPart::kFfn:
      return layer.experts.count == 0;
    case LayerPart::kExperts:
    case LayerPart::kEachExpert:
      return layer.experts.count > 0;
    case LayerPart::kSharedExpert:
      return layer.experts.shared_ffn > 0;
  }
  return false;
}

// The name of an expert's own matrix: `ffn_gate.3.weight` for `ffn_gate_exps.weight`.
std::string NameOfExpert(std::string_view name, int expert) {
  constexpr std::string_view kAllExperts = "_exps";
  const size_t at = name.find(kAllExperts);
  return absl::StrFormat("%s.%d%s", name.substr(0, at), expert,
                         name.substr(at + kAllExperts.size()));
}

// A part of a fused tensor's rows: the rule that is for it, and how many.
struct FusedPart {
  std::string_view name;
  Dim rows;
};

// A tensor of a layer that holds the rows of several, one after the other; where it has a matrix
// for each expert, in each of them.
struct FusedRule {
  std::string_view name;
  std::span<const FusedPart> parts;
};

constexpr FusedPart kQkvWeight[] = {
    {"attn_q.weight", Dim::kQRows}, {"attn_k.weight", Dim::kKv}, {"attn_v.weight", Dim::kKv}};
constexpr FusedPart kQkvBias[] = {
    {"attn_q.bias", Dim::kQRows}, {"attn_k.bias", Dim::kKv}, {"attn_v.bias", Dim::kKv}};
constexpr FusedPart kGateUp[] = {{"ffn_gate.weight", Dim::kFfn}, {"ffn_up.weight", Dim::kFfn}};
constexpr FusedPart kExpertGateUp[] = {{"ffn_gate_exps.weight", Dim::kExpertFfn},
                                       {"ffn_up_exps.weight", Dim::kExpertFfn}};
constexpr std::string_view kFusedFfn = "ffn_up.weight";
constexpr FusedRule kFused[] = {{"attn_qkv.weight", kQkvWeight},
                                {"attn_qkv.bias", kQkvBias},
                                {kFusedFfn, kGateUp},
                                {"ffn_gate_up_exps.weight", kExpertGateUp}};

// Rows of a tensor. The rows of a vector are its elements.
struct Rows {
  const TensorView* tensor = nullptr;
  uint64_t first = 0;
  uint64_t count = 0;
};

// The rows that have a role: one element, or one for each expert's matrix; empty if the file does
// not have them.
using RoleRows = std::vector<Rows>;

absl::Status SetMatrix(const Rows& rows, Matrix& matrix) {
  const TensorView& tensor = *rows.tensor;
  if (FindTensorType(static_cast<uint32_t>(tensor.type)) == nullptr) {
    return UnsupportedModel(
        tensor.name,
        absl::StrFormat("tensor \"%s\" is of type %s, which is not computed here; use a file "
                        "of the model in another quantisation",
                        tensor.name, GetTensorTypeInfo(tensor.type).name));
  }
  matrix = {.type = tensor.type,
            .rows = static_cast<int64_t>(rows.count),
            .cols = static_cast<int64_t>(tensor.ne[0]),
            .data = tensor.data.data() + rows.first * tensor.row_bytes(),
            .row_bytes = static_cast<int64_t>(tensor.row_bytes())};
  return absl::OkStatus();
}

absl::Status SetRole(const RoleRows& rows, Matrix& matrix) {
  return SetMatrix(rows.front(), matrix);
}

absl::Status SetRole(const RoleRows& rows, std::vector<Matrix>& matrices) {
  matrices.resize(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) ORCD_RETURN_IF_ERROR(SetMatrix(rows[i], matrices[i]));
  return absl::OkStatus();
}

absl::Status SetRole(const RoleRows& role, Vector& vector) {
  const Rows& rows = role.front();
  const TensorView& tensor = *rows.tensor;
  if (tensor.type != TensorType::kF32) {
    return InvalidModel(
        tensor.name,
        absl::StrFormat("tensor \"%s\" is of type %s; norms, biases and factors of RoPE have to be "
                        "F32, convert the model again",
                        tensor.name, GetTensorTypeInfo(tensor.type).name));
  }
  // Aligned: tensors lie at multiples of at least 8 bytes of a mapping, which starts a page.
  vector = Vector(reinterpret_cast<const float*>(tensor.data.data()), tensor.element_count())
               .subspan(rows.first, rows.count);
  return absl::OkStatus();
}

template <typename T>
T& Member(LayerWeights& layer, T LayerWeights::*role) {
  return layer.*role;
}
template <typename T>
T& Member(LayerWeights& layer, T ExpertWeights::*role) {
  return layer.experts.*role;
}
template <typename T>
T& Member(LayerWeights& layer, T DeltaNetWeights::*role) {
  return layer.delta.*role;
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
            ORCD_ASSIGN_OR_RETURN(const RoleRows rows, Find(rule, "", spec_.layers[0]));
            return rows.empty() ? absl::OkStatus() : SetRole(rows, weights.*role);
          } else {
            return TakeOfLayers(rule, weights.layers,
                                [role](const RoleRows& rows, LayerWeights& layer) {
                                  return SetRole(rows, Member(layer, role));
                                });
          }
        },
        rule.role);
  }

  // Takes the tensor `name` of layer `layer`, if it is there.
  template <typename Role>
  absl::Status TakeOfLayer(int layer, std::string_view name, Dim rows, Dim cols, bool needed,
                           Role& role) {
    // Its role in a rule means nothing here.
    const TensorRule rule = {name, &LayerWeights::attn_norm, rows, cols, LayerPart::kLayer, needed};
    ORCD_ASSIGN_OR_RETURN(const RoleRows found,
                          Find(rule, absl::StrFormat("blk.%d.", layer), spec_.layers[layer]));
    return found.empty() ? absl::OkStatus() : SetRole(found, role);
  }

  // Fails for the first tensor of the file that was not taken.
  absl::Status CheckAllTaken() const {
    for (const TensorView& tensor : gguf_.tensors()) {
      if (taken_.contains(tensor.name) || IsSkipped(tensor.name)) continue;
      const std::string name = QuoteForMessage(tensor.name);
      if (tensor.name.ends_with(".scale") || tensor.name.ends_with(".input_scale")) {
        return UnsupportedModel(
            tensor.name, absl::StrFormat("tensor %s is a scale of NVFP4 weights, which are not "
                                         "computed here; use a file of the model in another "
                                         "quantisation",
                                         name));
      }
      if (tensor.name.starts_with("rope_")) {
        return UnsupportedModel(
            tensor.name,
            absl::StrFormat("tensor %s scales RoPE, which is not computed here for a %s model; use "
                            "a file of the model without it",
                            name, architecture_.family));
      }
      return UnsupportedModel(
          tensor.name,
          absl::StrFormat("tensor %s is no part of a %s model of %d layers; computing without it "
                          "would be another model, load one that this worker runs",
                          name, architecture_.family, spec_.num_layers()));
    }
    return absl::OkStatus();
  }

 private:
  using SetLayerRole = std::function<absl::Status(const RoleRows& rows, LayerWeights& layer)>;

  // True of the tensors of ModelSpec::skipped_layers.
  bool IsSkipped(std::string_view name) const {
    constexpr std::string_view kPrefix = "blk.";
    if (!name.starts_with(kPrefix)) return false;
    const char* const end = name.data() + name.size();
    int layer = 0;
    const auto [rest, error] = std::from_chars(name.data() + kPrefix.size(), end, layer);
    return error == std::errc() && rest != end && *rest == '.' && layer >= spec_.num_layers() &&
           layer < spec_.num_layers() + spec_.skipped_layers;
  }

  absl::Status TakeOfLayers(const TensorRule& rule, std::vector<LayerWeights>& layers,
                            const SetLayerRole& set) {
    // Set once a layer has, or lacks, an optional tensor.
    int with = -1;
    int without = -1;
    for (int i = 0; i < static_cast<int>(layers.size()); ++i) {
      if (!Has(spec_.layers[i], rule.part)) continue;
      ORCD_ASSIGN_OR_RETURN(const RoleRows rows,
                            Find(rule, absl::StrFormat("blk.%d.", i), spec_.layers[i]));
      if (rows.empty()) {
        without = i;
      } else {
        with = i;
        ORCD_RETURN_IF_ERROR(set(rows, layers[i]));
      }
    }
    if (with < 0 || without < 0) return absl::OkStatus();
    const std::string missing = absl::StrFormat("blk.%d.%s", without, rule.name);
    return InvalidModel(
        missing, absl::StrFormat("tensor \"%s\" is missing and layer %d has it; either each layer "
                                 "has it or none, fetch or convert the model again",
                                 missing, with));
  }

  // The rows for `rule`, in a tensor of their own, in a fused one or in one for each expert; none
  // if they are absent and may be. `prefix` is the layer's, or empty.
  absl::StatusOr<RoleRows> Find(const TensorRule& rule, const std::string& prefix,
                                const LayerSpec& layer) {
    const std::string name = absl::StrFormat("%s%s", prefix, rule.name);
    const TensorView* const own = gguf_.FindTensor(name);
    const uint64_t count = SizeOf(rule.rows, spec_, layer);
    // The fused tensor that could have held the rows.
    std::string_view alternative;
    for (const FusedRule& fused : kFused) {
      const auto part = std::ranges::find(fused.parts, rule.name, &FusedPart::name);
      if (part == fused.parts.end()) continue;
      if (!IsFused(fused, prefix)) {
        if (fused.name != kFusedFfn || architecture_.fused_ffn) alternative = fused.name;
        continue;
      }
      const TensorView& whole = *gguf_.FindTensor(absl::StrFormat("%s%s", prefix, fused.name));
      if (own != nullptr && own != &whole) {
        return InvalidModel(
            name, absl::StrFormat("tensor \"%s\" is in the file, and so is \"%s\", which holds the "
                                  "same rows; one of them has to go, convert the model again",
                                  name, whole.name));
      }
      uint64_t first = 0;
      uint64_t rows = 0;
      for (const FusedPart& other : fused.parts) {
        if (&other == &*part) first = rows;
        rows += SizeOf(other.rows, spec_, layer);
      }
      taken_.insert(whole.name);
      ORCD_RETURN_IF_ERROR(CheckShape(rule, ShapeFor(rule, rows, layer), whole));
      return RowsIn(rule, whole, first, count, rows, layer);
    }
    if (own == nullptr && rule.part == LayerPart::kEachExpert && rule.cols != Dim::kOne) {
      ORCD_ASSIGN_OR_RETURN(RoleRows rows, FindOfExperts(rule, prefix, layer));
      if (!rows.empty()) return rows;
    }
    if (own == nullptr && !rule.needed) return RoleRows{};
    if (own == nullptr) {
      const bool of_experts =
          rule.part == LayerPart::kExperts || rule.part == LayerPart::kEachExpert;
      const std::string nor =
          alternative.empty() || alternative == rule.name
              ? ""
              : absl::StrFormat(" and no \"%s%s\" holds its rows", prefix, alternative);
      return InvalidModel(
          name, absl::StrFormat(
                    "tensor \"%s\" is missing%s; every %s model%s has it, so the file is not "
                    "whole or was made wrongly: fetch or convert it again",
                    name, nor, architecture_.family,
                    of_experts ? absl::StrFormat(" of %d experts", layer.experts.count) : ""));
    }
    taken_.insert(own->name);
    ORCD_RETURN_IF_ERROR(CheckShape(rule, ShapeFor(rule, count, layer), *own));
    return RowsIn(rule, *own, 0, count, count, layer);
  }

  // The matrices of files that hold each expert's in a tensor of its own; none if there are none.
  absl::StatusOr<RoleRows> FindOfExperts(const TensorRule& rule, const std::string& prefix,
                                         const LayerSpec& layer) {
    const uint64_t count = SizeOf(rule.rows, spec_, layer);
    const std::vector<uint64_t> shape = {SizeOf(rule.cols, spec_, layer), count};
    RoleRows found;
    std::string missing;
    for (int expert = 0; expert < layer.experts.count; ++expert) {
      const std::string name = absl::StrFormat("%s%s", prefix, NameOfExpert(rule.name, expert));
      const TensorView* const tensor = gguf_.FindTensor(name);
      if (tensor == nullptr) {
        if (missing.empty()) missing = name;
        continue;
      }
      taken_.insert(tensor->name);
      ORCD_RETURN_IF_ERROR(CheckShape(rule, shape, *tensor));
      found.push_back({tensor, 0, count});
    }
    if (found.empty() || missing.empty()) return found;
    return InvalidModel(
        missing, absl::StrFormat("tensor \"%s\" is missing and the file has those of %d of %d "
                                 "experts; fetch or convert it again",
                                 missing, found.size(), layer.experts.count));
  }

  // The rows of `rule` in `tensor`: `count` from `first` on, or as many in each expert's `stride`
  // rows.
  static RoleRows RowsIn(const TensorRule& rule, const TensorView& tensor, uint64_t first,
                         uint64_t count, uint64_t stride, const LayerSpec& layer) {
    if (rule.part != LayerPart::kEachExpert) return {Rows{&tensor, first, count}};
    if (rule.cols == Dim::kOne) return {Rows{&tensor, 0, tensor.element_count()}};
    RoleRows rows;
    for (int expert = 0; expert < layer.experts.count; ++expert) {
      rows.push_back({&tensor, static_cast<uint64_t>(expert) * stride + first, count});
    }
    return rows;
  }

  // True if the layer's file holds the parts of `fused` in one tensor.
  bool IsFused(const FusedRule& fused, const std::string& prefix) const {
    const auto has = [&](std::string_view name) {
      return gguf_.FindTensor(absl::StrFormat("%s%s", prefix, name)) != nullptr;
    };
    if (!has(fused.name)) return false;
    // The fused matrix has the name of its second part.
    return fused.name != kFusedFfn || (architecture_.fused_ffn && !has("ffn_gate.weight"));
  }

  // The dimensions of a tensor of these rows, the contiguous one first.
  std::vector<uint64_t> ShapeFor(const TensorRule& rule, uint64_t rows,
                                 const LayerSpec& layer) const {
    std::vector<uint64_t> shape;
    if (rule.cols != Dim::kOne) shape.push_back(SizeOf(rule.cols, spec_, layer));
    shape.push_back(rows);
    if (rule.part == LayerPart::kEachExpert) shape.push_back(layer.experts.count);
    return shape;
  }

  absl::Status CheckShape(const TensorRule& rule, const std::vector<uint64_t>& wanted,
                          const TensorView& tensor) const {
    // Some files violate this, and the message below would not say which side is wrong.
    if (rule.rows == Dim::kVocab && tensor.row_count() != wanted.back()) {
      return InvalidModel(
          tensor.name,
          absl::StrFormat("tensor \"%s\" has %d rows and tokenizer.ggml.tokens %d tokens; they "
                          "have to be equal (the matrix is not to be cut, the vocabulary is padded "
                          "instead), convert the model again",
                          tensor.name, tensor.row_count(), wanted.back()));
    }
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

absl::Status CheckFactors(std::string_view name, Vector factors) {
  for (const float factor : factors) {
    if (factor > 0 && std::isfinite(factor)) continue;
    return InvalidModel(name,
                        absl::StrFormat("tensor \"%s\" holds %g; RoPE divides by its elements, "
                                        "which must be finite and above zero, convert the model "
                                        "again",
                                        name, factor));
  }
  return absl::OkStatus();
}

// A delta net has its inputs' rows once: in tensors of their own or in one of both.
absl::Status CheckDeltaNet(int layer, const DeltaNetWeights& weights) {
  const struct {
    std::string_view name;
    const Matrix& rows;
    std::string_view fused_name;
    const Matrix& fused;
  } inputs[] = {{"attn_qkv.weight", weights.qkv, "ssm_in.weight", weights.qkv_gate},
                {"attn_gate.weight", weights.gate, "ssm_in.weight", weights.qkv_gate},
                {"ssm_beta.weight", weights.beta, "ssm_ba.weight", weights.beta_alpha},
                {"ssm_alpha.weight", weights.alpha, "ssm_ba.weight", weights.beta_alpha}};
  for (const auto& input : inputs) {
    if ((input.rows.data == nullptr) != (input.fused.data == nullptr)) continue;
    const std::string name = absl::StrFormat("blk.%d.%s", layer, input.name);
    const std::string fused = absl::StrFormat("blk.%d.%s", layer, input.fused_name);
    return InvalidModel(
        name, input.rows.data == nullptr
                  ? absl::StrFormat("tensor \"%s\" is missing and no \"%s\" holds its rows; fetch "
                                    "or convert the model again",
                                    name, fused)
                  : absl::StrFormat("tensor \"%s\" is in the file, and so is \"%s\", which holds "
                                    "the same rows; one of them has to go, convert the model again",
                                    name, fused));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelWeights> ModelWeights::FromGguf(const GgufReader& gguf, const ModelSpec& spec) {
  ORCD_ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitecture(gguf));
  TensorTaker taker(gguf, *architecture, spec);
  ModelWeights weights;
  weights.layers.resize(spec.layers.size());
  for (const auto& rules : architecture->tensors) {
    for (const TensorRule& rule : rules) ORCD_RETURN_IF_ERROR(taker.Take(rule, weights));
  }
  for (int i = 0; i < spec.num_layers(); ++i) {
    if (spec.layers[i].recurrent()) {
      ORCD_RETURN_IF_ERROR(CheckDeltaNet(i, weights.layers[i].delta));
    }
  }
  weights.tied = weights.output.data == nullptr;
  if (weights.tied) weights.output = weights.token_embd;
  ORCD_RETURN_IF_ERROR(taker.CheckAllTaken());
  ORCD_RETURN_IF_ERROR(CheckFactors("rope_freqs.weight", weights.rope_factors));
  ORCD_RETURN_IF_ERROR(CheckFactors("rope_factors_short.weight", weights.rope_factors_short));
  ORCD_RETURN_IF_ERROR(CheckFactors("rope_factors_long.weight", weights.rope_factors_long));
  return weights;
}

absl::StatusOr<std::optional<PredictBlock>> PredictBlock::FromGguf(const GgufReader& gguf,
                                                                   const ModelSpec& spec,
                                                                   const ModelWeights& weights) {
  constexpr std::string_view kProjection = "nextn.eh_proj.weight";
  const int index = spec.num_layers();
  if (spec.skipped_layers == 0 ||
      gguf.FindTensor(absl::StrFormat("blk.%d.%s", index, kProjection)) == nullptr) {
    return std::nullopt;
  }
  ORCD_ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitecture(gguf));
  PredictBlock block;
  block.spec = spec.layers.back();
  block.spec.delta = {};
  ModelSpec with_block = spec;
  with_block.layers.push_back(block.spec);
  TensorTaker taker(gguf, *architecture, with_block);
  ModelWeights all;
  all.layers.resize(with_block.layers.size());
  for (const auto& rules : architecture->tensors) {
    for (const TensorRule& rule : rules) ORCD_RETURN_IF_ERROR(taker.Take(rule, all));
  }
  block.layer = std::move(all.layers.back());
  block.output_norm = weights.output_norm;
  block.token_embd = weights.token_embd;
  block.output = weights.output;
  const auto take = [&](std::string_view name, Dim rows, Dim cols, bool needed, auto& role) {
    return taker.TakeOfLayer(index, name, rows, cols, needed, role);
  };
  ORCD_RETURN_IF_ERROR(take(kProjection, Dim::kHidden, Dim::kTwiceHidden, true, block.projection));
  ORCD_RETURN_IF_ERROR(
      take("nextn.enorm.weight", Dim::kHidden, Dim::kOne, true, block.embedding_norm));
  ORCD_RETURN_IF_ERROR(
      take("nextn.hnorm.weight", Dim::kHidden, Dim::kOne, true, block.hidden_norm));
  ORCD_RETURN_IF_ERROR(
      take("nextn.shared_head_norm.weight", Dim::kHidden, Dim::kOne, false, block.output_norm));
  ORCD_RETURN_IF_ERROR(
      take("nextn.embed_tokens.weight", Dim::kVocab, Dim::kHidden, false, block.token_embd));
  ORCD_RETURN_IF_ERROR(
      take("nextn.shared_head_head.weight", Dim::kVocab, Dim::kHidden, false, block.output));
  return block;
}

}  // namespace orcd
