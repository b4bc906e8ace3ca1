#include "runtime/model/arch/experts.h"

#include <iterator>
#include <limits>
#include <string_view>

#include "absl/strings/str_format.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

constexpr std::string_view kUsedCount = "expert_used_count";

absl::StatusOr<RouterScore> ReadScore(const Keys& keys, const ExpertsFamily& family) {
  constexpr std::string_view kGating = "expert_gating_func";
  // In the order of the key's numbers from 1; 0 stands for a file that does not say.
  constexpr RouterScore kScores[] = {RouterScore::kSoftmax, RouterScore::kSigmoid,
                                     RouterScore::kSoftmaxOfChosen};
  ORCD_ASSIGN_OR_RETURN(const int number, keys.Count(kGating, std::numeric_limits<int>::max()));
  if (number == 0) return family.score;
  if (number <= static_cast<int>(std::size(kScores))) {
    const RouterScore score = kScores[number - 1];
    if (family.by_keys || score == family.score) return score;
  }
  return keys.Unsupported(
      kGating, absl::StrFormat("is %d, which is not computed here for the architecture \"%s\"; use "
                               "a file of the model with another router",
                               number, keys.architecture()));
}

absl::StatusOr<bool> ReadNormalise(const Keys& keys, const ExpertsFamily& family,
                                   RouterScore score) {
  constexpr std::string_view kNormalise = "expert_weights_norm";
  // A softmax of the chosen is normalised already.
  if (score == RouterScore::kSoftmaxOfChosen) return false;
  ORCD_ASSIGN_OR_RETURN(const bool normalise, keys.Bool(kNormalise, family.normalise));
  if (family.by_keys || normalise == family.normalise) return normalise;
  return keys.Unsupported(
      kNormalise, absl::StrFormat("is %s, which is not computed here for the architecture \"%s\"; "
                                  "convert the model again",
                                  normalise ? "true" : "false", keys.architecture()));
}

// A choice among groups that leaves all of them is none, which ExpertsSpec's defaults say.
absl::Status ReadGroups(const Keys& keys, ExpertsSpec& experts) {
  constexpr std::string_view kGroups = "expert_group_count";
  constexpr std::string_view kGroupsUsed = "expert_group_used_count";
  ORCD_ASSIGN_OR_RETURN(const int groups, keys.Count(kGroups, kMaxExperts));
  if (groups <= 1) return absl::OkStatus();
  if (experts.count % groups != 0 || experts.count == groups) {
    return keys.Invalid(
        kGroups, absl::StrFormat("is %d and has to divide \"%s\", which is %d, into groups of two "
                                 "or more; convert the model again",
                                 groups, keys.Key(kExpertCount), experts.count));
  }
  ORCD_ASSIGN_OR_RETURN(const int used, keys.Size(kGroupsUsed, groups));
  if (experts.used > experts.count / groups * used) {
    return keys.Invalid(kUsedCount, absl::StrFormat("is %d, and the %d groups of \"%s\" have %d "
                                                    "experts; convert the model again",
                                                    experts.used, used, keys.Key(kGroupsUsed),
                                                    experts.count / groups * used));
  }
  if (used == groups) return absl::OkStatus();
  experts.groups = groups;
  experts.groups_used = used;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ExpertsSpec> ReadExperts(const Keys& keys, const ExpertsFamily& family) {
  ExpertsSpec experts;
  ORCD_ASSIGN_OR_RETURN(experts.count, keys.Size(kExpertCount, kMaxExperts));
  ORCD_ASSIGN_OR_RETURN(experts.used, keys.Size(kUsedCount, kMaxExperts));
  if (experts.used > experts.count) {
    return keys.Invalid(kUsedCount,
                        absl::StrFormat("is %d and has to be at most \"%s\", which is %d; convert "
                                        "the model again",
                                        experts.used, keys.Key(kExpertCount), experts.count));
  }
  ORCD_ASSIGN_OR_RETURN(experts.ffn, keys.Size("expert_feed_forward_length", kMaxFfn, family.ffn));
  ORCD_ASSIGN_OR_RETURN(experts.score, ReadScore(keys, family));
  ORCD_ASSIGN_OR_RETURN(experts.normalise, ReadNormalise(keys, family, experts.score));
  ORCD_RETURN_IF_ERROR(ReadGroups(keys, experts));
  ORCD_ASSIGN_OR_RETURN(const float scale, keys.ScaleOrZero("expert_weights_scale"));
  if (scale != 0) experts.scale = scale;
  return experts;
}

void SetExperts(const ExpertsSpec& experts, int first, ModelSpec& spec) {
  for (int i = first; i < spec.num_layers(); ++i) {
    spec.layers[i].ffn = 0;
    spec.layers[i].experts = experts;
  }
}

}  // namespace orcd
