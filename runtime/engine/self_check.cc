#include "runtime/engine/self_check.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/model/load_cancelled.h"

namespace orcd {
namespace {

// Number of tokens compared in the layers between the first and the last: the second token attends
// to the first.
constexpr int kMiddleTokens = 2;
// Backends round activations and order sums in different ways; garbage differs by far more.
constexpr double kMaxNmse = 1e-4;
// Maximum distance of a drawn token's logit below the greatest logit, in units of the root mean
// square of the logits: twice the change of a logit that kMaxNmse allows.
constexpr double kMaxDrop = 0.02;

absl::Status Failed(const std::string& what) {
  return MakeError(absl::StatusCode::kInternal,
                   absl::StrCat("the numerics self-check failed: ", what,
                                "; the file or this backend cannot be trusted, check the file's "
                                "SHA-256 and run 'orcd-inspect layers' on it"),
                   {.reason = "SELF_CHECK_FAILED"});
}

std::string Where(TapPoint point, int layer) {
  return absl::StrCat(layer < 0 ? "" : absl::StrCat("layer ", layer, ", "), "operation '",
                      NameOf(point), "'");
}

// Sum of (a - b)^2 over sum of b^2.
double Nmse(std::span<const float> a, std::span<const float> b) {
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    error += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return norm > 0 ? error / norm : error;
}

double RootMeanSquare(std::span<const float> values) {
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v) * v;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

struct Rows {
  std::vector<float> values;
  int64_t cols = 0;

  std::span<const float> row(int64_t i) const { return std::span(values).subspan(i * cols, cols); }
};

// Records the first activation that is not finite, and keeps the activations that are compared
// later, the rows of consecutive steps appended: all rows of the first layer, of the last layer and
// its input, and of the head; kMiddleTokens rows of the layers between.
class ActivationRecorder : public ActivationTap {
 public:
  explicit ActivationRecorder(int layers) : layers_(layers) {}

  void OnActivation(TapPoint point, int layer, std::span<const float> values, int64_t rows,
                    int64_t cols) override {
    if (first_bad_.empty()) {
      const auto bad =
          std::find_if(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
      if (bad != values.end()) {
        first_bad_ = absl::StrCat(Where(point, layer), " gave ", *bad, " in row ",
                                  (bad - values.begin()) / cols, " of ", rows);
      }
    }
    Rows& seen = seen_[{layer, point}];
    seen.cols = cols;
    const bool all =
        layer <= 0 || layer >= layers_ - 1 || (layer == layers_ - 2 && point == TapPoint::kLayer);
    const int64_t room = kMiddleTokens - static_cast<int64_t>(seen.values.size()) / cols;
    const auto kept = values.first((all ? rows : std::clamp<int64_t>(room, 0, rows)) * cols);
    seen.values.insert(seen.values.end(), kept.begin(), kept.end());
  }

  // Empty if all activations were finite.
  const std::string& first_bad() const { return first_bad_; }
  // Null if there was no such activation.
  const Rows* Find(TapPoint point, int layer) const {
    const auto found = seen_.find({layer, point});
    return found == seen_.end() ? nullptr : &found->second;
  }

 private:
  const int layers_;
  std::string first_bad_;
  std::map<std::pair<int, TapPoint>, Rows> seen_;
};

// Compares the activations of a reference with recorded ones, from row `first_row` on.
class Comparison : public ActivationTap {
 public:
  Comparison(const ActivationRecorder& recorded, int64_t first_row)
      : recorded_(recorded), first_row_(first_row) {}

  void OnActivation(TapPoint point, int layer, std::span<const float> values, int64_t rows,
                    int64_t cols) override {
    if (!first_difference_.empty()) return;
    const Rows* const seen = recorded_.Find(point, layer);
    if (seen == nullptr || seen->cols != cols ||
        static_cast<int64_t>(seen->values.size()) < (first_row_ + rows) * cols) {
      first_difference_ = absl::StrCat(Where(point, layer), " was not computed");
      return;
    }
    const double nmse =
        Nmse(std::span(seen->values).subspan(first_row_ * cols, rows * cols), values);
    if (!(nmse <= kMaxNmse)) {
      first_difference_ = absl::StrCat(Where(point, layer), " differs from the reference's, NMSE ",
                                       nmse, " where ", kMaxNmse, " may be");
    }
  }

  // Empty if there was none.
  const std::string& first_difference() const { return first_difference_; }

 private:
  const ActivationRecorder& recorded_;
  const int64_t first_row_;
  std::string first_difference_;
};

class Run {
 public:
  Run(const Model& model, Backend& backend)
      : layers_(model.spec().num_layers()),
        step_tokens_(backend.info().max_step_tokens),
        backend_(backend) {
    const BackendInfo& info = backend.info();
    int64_t count = std::min(kSelfCheckTokens, model.spec().context_length);
    if (info.max_context > 0) count = std::min<int64_t>(count, info.max_context);
    const int blocks =
        info.window_blocks > 0 ? std::min(info.kv_blocks, info.window_blocks) : info.kv_blocks;
    count = std::min(count, int64_t{blocks} * info.block_tokens);
    const int vocab = model.spec().vocab;
    for (int64_t i = 0; i < count; ++i) {
      tokens_.push_back(static_cast<int32_t>((i * 2654435761 + 17) % vocab));
    }
    blocks_.resize((count + info.block_tokens - 1) / info.block_tokens);
    std::iota(blocks_.begin(), blocks_.end(), 0);
    params_.temperature = 0;
    params_.logprobs = 0;
  }

  std::span<const int32_t> tokens() const { return tokens_; }
  int count() const { return static_cast<int>(tokens_.size()); }

  // Runs tokens [first, first + count) and returns the activations that the backend showed.
  absl::StatusOr<ActivationRecorder> Record(int first, int count) {
    ActivationRecorder recorded(layers_);
    for (const int end = first + count; first < end; first += step_tokens_) {
      const int part = std::min(step_tokens_, end - first);
      ORCD_RETURN_IF_ERROR(Step(first, part, /*sample=*/false, &recorded).status());
    }
    return recorded;
  }

  // Runs tokens [first, first + count) as in service and draws the next token, greedily.
  absl::StatusOr<SampledToken> Draw(int first, int count) {
    for (; count > step_tokens_; first += step_tokens_, count -= step_tokens_) {
      ORCD_RETURN_IF_ERROR(Step(first, step_tokens_, /*sample=*/false, nullptr).status());
    }
    ORCD_ASSIGN_OR_RETURN(StepResult result, Step(first, count, /*sample=*/true, nullptr));
    std::vector<SampledToken>& samples = result.parts[0].samples;
    if (samples.size() != 1) {
      return Failed(absl::StrCat("a step that draws one token drew ", samples.size()));
    }
    return std::move(samples[0]);
  }

 private:
  absl::StatusOr<StepResult> Step(int first, int count, bool sample, ActivationTap* tap) {
    StepSequence part;
    if (first == 0) {
      part.start_params = &params_;
      part.start_history = tokens_;
    }
    part.tokens = std::span(tokens_).subspan(first, count);
    part.start_position = first;
    part.blocks = blocks_;
    if (backend_.info().window_blocks > 0) part.window_blocks = blocks_;
    part.sample = sample;
    StepBatch batch;
    batch.seqs.push_back(part);
    batch.tap = tap;
    ORCD_RETURN_IF_ERROR(backend_.Launch(batch));
    return backend_.Wait();
  }

  const int layers_;
  const int step_tokens_;
  Backend& backend_;
  SamplingParams params_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> blocks_;
};

absl::Status CompareWithReference(const ActivationRecorder& whole, std::span<const int32_t> tokens,
                                  int layers, LayerReference& reference,
                                  absl::FunctionRef<absl::Status()> go_on) {
  const int last = layers - 1;
  const auto output_of = [&](int layer) {
    return layer < 0 ? whole.Find(TapPoint::kEmbed, -1) : whole.Find(TapPoint::kLayer, layer);
  };
  const size_t count = tokens.size();
  for (int layer = 0; layer < layers; ++layer) {
    ORCD_RETURN_IF_ERROR(go_on());
    const bool all = layer == 0 || layer == last;
    const auto part = tokens.first(all ? count : std::min<size_t>(count, kMiddleTokens));
    Comparison comparison(whole, 0);
    std::span<const float> input;
    if (layer > 0) {
      const Rows* const before = output_of(layer - 1);
      if (before == nullptr || before->values.size() < part.size() * before->cols) {
        return Failed(absl::StrCat("layer ", layer - 1, " was not computed"));
      }
      input = std::span(before->values).first(part.size() * before->cols);
    }
    reference.RunLayer(part, layer, input, comparison);
    if (!comparison.first_difference().empty()) return Failed(comparison.first_difference());
  }
  for (const int row : {0, static_cast<int>(count) - 1}) {
    Comparison comparison(whole, row);
    reference.RunHead(output_of(last)->row(row), comparison);
    if (!comparison.first_difference().empty()) {
      return Failed(absl::StrCat(comparison.first_difference(), " at position ", row));
    }
  }
  return absl::OkStatus();
}

// Checks that a greedy draw agrees with the logits of its position. `step` describes the step in
// error messages.
absl::Status CheckDraw(const SampledToken& drawn, std::span<const float> logits, int position,
                       const char* step) {
  if (!drawn.finite) {
    return Failed(absl::StrCat(step, " gave logits that are not finite at position ", position));
  }
  const int64_t vocab = static_cast<int64_t>(logits.size());
  if (drawn.token < 0 || drawn.token >= vocab) {
    return Failed(absl::StrCat("token ", drawn.token, " was drawn at position ", position, " by ",
                               step, ", the vocabulary has ", vocab));
  }
  const double allowed = kMaxDrop * RootMeanSquare(logits);
  const double most = *std::max_element(logits.begin(), logits.end());
  if (!(logits[drawn.token] >= most - allowed)) {
    return Failed(absl::StrCat("token ", drawn.token, " was drawn at position ", position, " by ",
                               step, ", whose logit is ", logits[drawn.token], " where ", most,
                               " is the greatest"));
  }
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - most);
  const double logprob = logits[drawn.token] - most - std::log(sum);
  if (!(std::abs(drawn.logprob - logprob) <= allowed + 1e-3)) {
    return Failed(absl::StrCat("the token drawn at position ", position, " by ", step,
                               " has logprob ", drawn.logprob, " where the logits say ", logprob));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SelfCheck(const Model& model, Backend& backend, LayerReference* reference,
                       LoadObserver& observer) {
  const auto go_on = [&] {
    observer.OnProgress(LoadStage::kSelfCheck, 0, 0);
    return observer.cancelled() ? LoadCancelled() : absl::OkStatus();
  };
  ORCD_RETURN_IF_ERROR(go_on());
  Run run(model, backend);
  const int count = run.count();
  ORCD_ASSIGN_OR_RETURN(const ActivationRecorder whole, run.Record(0, count));
  if (!whole.first_bad().empty()) return Failed(whole.first_bad());
  const Rows* const logits = whole.Find(TapPoint::kLogits, -1);
  if (logits == nullptr || static_cast<int64_t>(logits->values.size()) != count * logits->cols) {
    return Failed("there are no logits");
  }
  for (int i = 0; i < count; ++i) {
    const auto [least, most] = std::minmax_element(logits->row(i).begin(), logits->row(i).end());
    if (*most - *least < 1e-6f) {
      return Failed(absl::StrCat("every logit at position ", i, " is ", *least));
    }
  }
  if (reference != nullptr) {
    ORCD_RETURN_IF_ERROR(
        CompareWithReference(whole, run.tokens(), model.spec().num_layers(), *reference, go_on));
  }
  for (int i = 0; i < count; ++i) {
    ORCD_RETURN_IF_ERROR(go_on());
    ORCD_ASSIGN_OR_RETURN(const SampledToken drawn, run.Draw(i, 1));
    ORCD_RETURN_IF_ERROR(CheckDraw(drawn, logits->row(i), i, "a step of one token"));
  }
  // Uses the keys and values that the steps of one token wrote.
  const int last = count - 1;
  ORCD_ASSIGN_OR_RETURN(const ActivationRecorder single, run.Record(last, 1));
  if (!single.first_bad().empty()) return Failed(single.first_bad());
  const Rows* const again = single.Find(TapPoint::kLogits, -1);
  const double nmse = again == nullptr ? INFINITY : Nmse(again->values, logits->row(last));
  if (!(nmse <= kMaxNmse)) {
    return Failed(absl::StrCat("logits at position ", last,
                               " differ between a step of many tokens and one of one token, NMSE ",
                               nmse));
  }
  // A prompt step; a backend need compute only the last token's logits.
  ORCD_ASSIGN_OR_RETURN(const SampledToken drawn, run.Draw(0, count));
  ORCD_RETURN_IF_ERROR(CheckDraw(drawn, logits->row(last), last, "a step of a prompt"));
  return go_on();
}

}  // namespace orcd
