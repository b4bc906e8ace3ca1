#include "runtime/model/arch/delta_net.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

constexpr std::string_view kStateSize = "ssm.state_size";
constexpr std::string_view kInnerSize = "ssm.inner_size";
constexpr std::string_view kValueHeads = "ssm.time_step_rank";
constexpr std::string_view kKeyHeads = "ssm.group_count";
constexpr std::string_view kRecurrentLayers = "attention.recurrent_layers";
constexpr std::string_view kInterval = "full_attention_interval";
constexpr int kDefaultInterval = 4;
// The heads' dimensions are in registers of so many.
constexpr int kHeadDimMultiple = 16;

absl::StatusOr<DeltaNetSpec> ReadSizes(const Keys& keys, HeadPairing pairing) {
  DeltaNetSpec delta;
  delta.pairing = pairing;
  ORCD_ASSIGN_OR_RETURN(delta.conv, keys.Size("ssm.conv_kernel", kMaxConvolution));
  ORCD_ASSIGN_OR_RETURN(delta.head_dim, keys.Size(kStateSize, kMaxHeadDim));
  ORCD_ASSIGN_OR_RETURN(delta.key_heads, keys.Size(kKeyHeads, kMaxHeads));
  ORCD_ASSIGN_OR_RETURN(delta.value_heads, keys.Size(kValueHeads, kMaxHeads));
  ORCD_ASSIGN_OR_RETURN(const int inner, keys.Size(kInnerSize, kMaxHeads * kMaxHeadDim));
  if (delta.value_heads % delta.key_heads != 0) {
    return keys.Invalid(kValueHeads,
                        absl::StrFormat("is %d and has to be a multiple of \"%s\", which is %d; "
                                        "convert the model again",
                                        delta.value_heads, keys.Key(kKeyHeads), delta.key_heads));
  }
  if (inner % delta.value_heads != 0) {
    return keys.Invalid(kInnerSize,
                        absl::StrFormat("is %d and has to be a multiple of \"%s\", "
                                        "which is %d; convert the model again",
                                        inner, keys.Key(kValueHeads), delta.value_heads));
  }
  if (inner / delta.value_heads != delta.head_dim) {
    return keys.Unsupported(
        kInnerSize, absl::StrFormat("is %d, so that the values of %d heads have %d dimensions, and "
                                    "keys have %d (\"%s\"); only equal ones are computed here",
                                    inner, delta.value_heads, inner / delta.value_heads,
                                    delta.head_dim, keys.Key(kStateSize)));
  }
  if (delta.head_dim % kHeadDimMultiple != 0) {
    return keys.Unsupported(
        kStateSize, absl::StrFormat("is %d; only multiples of %d are computed here", delta.head_dim,
                                    kHeadDimMultiple));
  }
  return delta;
}

// Tells which of the file's blocks are recurrent.
absl::StatusOr<std::vector<bool>> ReadRecurrentLayers(const Keys& keys, int blocks) {
  std::vector<bool> recurrent(blocks);
  if (const GgufEntry* const entry = keys.gguf().Find(keys.Key(kRecurrentLayers))) {
    const auto* const array = std::get_if<std::shared_ptr<const GgufArray>>(&entry->value);
    if (array == nullptr || (*array)->type != GgufType::kBool ||
        (*array)->size() != recurrent.size()) {
      return keys.Invalid(
          kRecurrentLayers,
          absl::StrFormat("has to hold a bool for each of %d blocks; convert the model again",
                          blocks));
    }
    for (int i = 0; i < blocks; ++i) recurrent[i] = (*array)->unsigned_values[i] != 0;
    return recurrent;
  }
  ORCD_ASSIGN_OR_RETURN(const int interval, keys.Size(kInterval, kMaxLayers, kDefaultInterval));
  for (int i = 0; i < blocks; ++i) recurrent[i] = (i + 1) % interval != 0;
  return recurrent;
}

}  // namespace

absl::Status ReadDeltaNets(const Keys& keys, HeadPairing pairing, ModelSpec& spec) {
  ORCD_ASSIGN_OR_RETURN(const DeltaNetSpec delta, ReadSizes(keys, pairing));
  ORCD_ASSIGN_OR_RETURN(const std::vector<bool> recurrent,
                        ReadRecurrentLayers(keys, spec.num_layers() + spec.skipped_layers));
  for (int i = 0; i < spec.num_layers(); ++i) {
    if (recurrent[i]) spec.layers[i].delta = delta;
  }
  if (!std::ranges::all_of(spec.layers, &LayerSpec::recurrent)) return absl::OkStatus();
  return keys.Unsupported(
      keys.Has(kRecurrentLayers) ? kRecurrentLayers : kInterval,
      absl::StrFormat("makes each of the %d layers recurrent, and at least one has to have "
                      "attention; load a whole model of the family",
                      spec.num_layers()));
}

}  // namespace orcd
