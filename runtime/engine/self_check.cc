#include "runtime/engine/self_check.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/error.h"

namespace orcd {
namespace {

constexpr int kTokens = 8;
// A step of one token may add in another order than a step of many; garbage differs by far more.
constexpr double kMaxNmse = 1e-4;

absl::Status Failed(const std::string& what) {
  return MakeError(absl::StatusCode::kInternal,
                   absl::StrCat("the numerics self-check failed: ", what,
                                "; the file or this backend cannot be trusted, check the file's "
                                "SHA-256 and run 'orcd-inspect layers' on it"),
                   {.reason = "SELF_CHECK_FAILED"});
}

// Keeps the logits and the first activation that is not finite.
class Witness : public ActivationTap {
 public:
  void OnActivation(std::string_view name, int layer, std::span<const float> values, int64_t rows,
                    int64_t cols) override {
    if (name == "logits") {
      logits.assign(values.begin(), values.end());
      vocab = cols;
    }
    if (!first_bad.empty()) return;
    const auto bad =
        std::find_if(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
    if (bad == values.end()) return;
    const int64_t row = (bad - values.begin()) / cols;
    first_bad = absl::StrCat(layer < 0 ? "" : absl::StrCat("layer ", layer, ", "), "operation '",
                             std::string(name), "' gave ", *bad, " in row ", row, " of ", rows);
  }

  std::vector<float> logits;
  int64_t vocab = 0;
  std::string first_bad;
};

// Σ(a−b)² / Σb².
double Nmse(std::span<const float> a, std::span<const float> b) {
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    error += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return norm > 0 ? error / norm : error;
}

class Run {
 public:
  Run(const Model& model, Backend& backend) : backend_(backend) {
    const int vocab = model.config().vocab;
    for (int i = 0; i < kTokens; ++i) {
      tokens_.push_back(static_cast<int32_t>((static_cast<int64_t>(i) * 2654435761 + 17) % vocab));
    }
    const int block_tokens = backend.info().block_tokens;
    blocks_.resize((kTokens + block_tokens - 1) / block_tokens);
    std::iota(blocks_.begin(), blocks_.end(), 0);
  }

  // Runs tokens [first, first + count) and returns what the backend showed of it.
  absl::StatusOr<Witness> Step(int first, int count) {
    Witness witness;
    StepSequence part;
    if (first == 0) {
      part.start_params = &params_;
      part.start_history = tokens_;
    }
    part.tokens = std::span(tokens_).subspan(first, count);
    part.start_position = first;
    part.blocks = blocks_;
    StepBatch batch;
    batch.seqs.push_back(part);
    batch.tap = &witness;
    ORCD_RETURN_IF_ERROR(backend_.Launch(batch));
    ORCD_RETURN_IF_ERROR(backend_.Wait().status());
    return witness;
  }

 private:
  Backend& backend_;
  const SamplingParams params_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> blocks_;
};

}  // namespace

absl::Status SelfCheck(const Model& model, Backend& backend, LoadObserver& observer) {
  observer.OnProgress(LoadStage::kSelfCheck, 0, 0);
  Run run(model, backend);
  ORCD_ASSIGN_OR_RETURN(const Witness whole, run.Step(0, kTokens));
  if (!whole.first_bad.empty()) return Failed(whole.first_bad);

  for (int i = 0; i < kTokens; ++i) {
    const auto logits = std::span(whole.logits).subspan(i * whole.vocab, whole.vocab);
    const auto [least, most] = std::minmax_element(logits.begin(), logits.end());
    if (*most - *least < 1e-6f) {
      return Failed(absl::StrCat("every logit at position ", i, " is ", *least));
    }
    if (observer.cancelled()) {
      return MakeError(absl::StatusCode::kCancelled, "the load was cancelled",
                       {.reason = "LOAD_CANCELLED"});
    }
    ORCD_ASSIGN_OR_RETURN(const Witness single, run.Step(i, 1));
    if (!single.first_bad.empty()) return Failed(single.first_bad);
    const double nmse = Nmse(single.logits, logits);
    if (!(nmse <= kMaxNmse)) {
      return Failed(
          absl::StrCat("logits at position ", i,
                       " differ between a step of many tokens and one of one token, NMSE ", nmse));
    }
  }
  return absl::OkStatus();
}

}  // namespace orcd
