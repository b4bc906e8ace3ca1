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
#include "absl/strings/str_join.h"
#include "runtime/base/error.h"
#include "runtime/engine/forced_experts.h"
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
// later, the rows of consecutive steps appended: all rows of the layers `whole`, of their inputs
// and of the head, and `other_rows` rows of the other layers. With 0 other rows it looks at nothing
// but the layers `whole` and their inputs.
class ActivationRecorder : public ActivationTap {
 public:
  ActivationRecorder(std::vector<int> whole, int64_t other_rows)
      : whole_(std::move(whole)), other_rows_(other_rows) {}

  void OnActivation(TapPoint point, int layer, std::span<const float> values, int64_t rows,
                    int64_t cols) override {
    const bool all = KeepsAll(point, layer);
    if (!all && other_rows_ == 0) return;
    Rows& seen = seen_[{layer, point}];
    if (first_bad_.empty()) {
      const auto bad =
          std::find_if(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
      if (bad != values.end()) {
        bad_layer_ = layer;
        bad_row_ = (bad - values.begin()) / cols;
        first_bad_ =
            absl::StrCat(Where(point, layer), " gave ", *bad, " in row ", bad_row_, " of ", rows);
      }
    }
    seen.cols = cols;
    const int64_t room = other_rows_ - static_cast<int64_t>(seen.values.size()) / cols;
    const auto kept = values.first((all ? rows : std::clamp<int64_t>(room, 0, rows)) * cols);
    seen.values.insert(seen.values.end(), kept.begin(), kept.end());
  }

  // Empty if all activations were finite.
  const std::string& first_bad() const { return first_bad_; }
  // The layer and the row of its step, if there was one.
  int bad_layer() const { return bad_layer_; }
  int64_t bad_row() const { return bad_row_; }
  // Null if there was no such activation.
  const Rows* Find(TapPoint point, int layer) const {
    const auto found = seen_.find({layer, point});
    return found == seen_.end() ? nullptr : &found->second;
  }
  // Empty if not as many rows of `cols` were seen.
  std::span<const float> FindRows(TapPoint point, int layer, int64_t first, int64_t rows,
                                  int64_t cols) const {
    const Rows* const seen = Find(point, layer);
    if (seen == nullptr || seen->cols != cols ||
        static_cast<int64_t>(seen->values.size()) < (first + rows) * cols) {
      return {};
    }
    return std::span(seen->values).subspan(first * cols, rows * cols);
  }

 private:
  bool KeepsAll(TapPoint point, int layer) const {
    const auto is_whole = [&](int i) { return std::ranges::find(whole_, i) != whole_.end(); };
    if (layer < 0) return point == TapPoint::kEmbed || other_rows_ > 0;
    return is_whole(layer) || (point == TapPoint::kLayer && is_whole(layer + 1));
  }

  const std::vector<int> whole_;
  const int64_t other_rows_;
  std::string first_bad_;
  int bad_layer_ = -1;
  int64_t bad_row_ = 0;
  std::map<std::pair<int, TapPoint>, Rows> seen_;
};

// Compares the activations of a reference with recorded ones, from row `first_row` on: all rows of
// an activation together, or each by itself. The reference chooses experts by the recorded logits,
// since rounding alone may decide between two experts that score nearly the same.
class Comparison : public ActivationTap {
 public:
  Comparison(const ActivationRecorder& recorded, int64_t first_row, bool by_row = false)
      : recorded_(recorded), first_row_(first_row), by_row_(by_row) {}

  void OnActivation(TapPoint point, int layer, std::span<const float> values, int64_t rows,
                    int64_t cols) override {
    if (!first_difference_.empty()) return;
    const auto seen = recorded_.FindRows(point, layer, first_row_, rows, cols);
    if (seen.empty()) {
      first_difference_ = absl::StrCat(Where(point, layer), " was not computed");
      return;
    }
    const int64_t part = by_row_ ? cols : rows * cols;
    for (int64_t at = 0; at < rows * cols; at += part) {
      const double nmse = Nmse(seen.subspan(at, part), values.subspan(at, part));
      if (nmse <= kMaxNmse) continue;
      first_difference_ = absl::StrCat(Where(point, layer), " differs from the reference's, NMSE ",
                                       nmse, " where ", kMaxNmse, " may be");
      row_ = at / cols;
      return;
    }
  }

  bool Replace(TapPoint point, int layer, std::span<float> values, int64_t rows,
               int64_t cols) override {
    OnActivation(point, layer, values, rows, cols);
    const auto seen = recorded_.FindRows(point, layer, first_row_, rows, cols);
    if (seen.empty()) return false;
    std::ranges::copy(seen, values.begin());
    return true;
  }

  // Empty if there was none.
  const std::string& first_difference() const { return first_difference_; }
  // The row that differs first, if rows are compared by themselves.
  int64_t row() const { return row_; }

 private:
  const ActivationRecorder& recorded_;
  const int64_t first_row_;
  const bool by_row_;
  std::string first_difference_;
  int64_t row_ = 0;
};

// A layer whose experts the check chooses. Token i of the check takes those of tokens[i % size].
struct ForcedLayer {
  int layer = 0;
  std::vector<ForcedExperts> tokens;

  const ForcedExperts& token(int64_t i) const { return tokens[i % tokens.size()]; }
};

const ForcedLayer* FindLayer(std::span<const ForcedLayer> forced, int layer) {
  const auto found = std::ranges::find(forced, layer, &ForcedLayer::layer);
  return found == forced.end() ? nullptr : &*found;
}

// Chooses the experts of some layers and shows the activations to another tap. The rows of the step
// are the tokens from `first_token` on.
class ForcingTap : public ActivationTap {
 public:
  ForcingTap(std::span<const ForcedLayer> forced, int64_t first_token, ActivationTap& to)
      : forced_(forced), first_token_(first_token), to_(to) {}

  void OnActivation(TapPoint point, int layer, std::span<const float> values, int64_t rows,
                    int64_t cols) override {
    const ForcedLayer* const forced = FindLayer(forced_, layer);
    if (forced != nullptr && point == TapPoint::kExpertWeights) {
      for (int64_t row = 0; row < rows && first_other_choice_.empty(); ++row) {
        CheckChoice(layer, row, values.subspan(row * cols, cols),
                    forced->token(first_token_ + row).experts);
      }
    }
    to_.OnActivation(point, layer, values, rows, cols);
  }

  bool Replace(TapPoint point, int layer, std::span<float> values, int64_t rows,
               int64_t cols) override {
    const ForcedLayer* const forced = FindLayer(forced_, layer);
    if (forced == nullptr || point != TapPoint::kRouter) return false;
    std::ranges::fill(values, kOtherExpertLogit);
    for (int64_t row = 0; row < rows; ++row) {
      const ForcedExperts& token = forced->token(first_token_ + row);
      for (size_t i = 0; i < token.experts.size(); ++i) {
        values[row * cols + token.experts[i]] = token.logits[i];
      }
    }
    return true;
  }

  // Empty if every token took the experts that were chosen for it.
  const std::string& first_other_choice() const { return first_other_choice_; }

 private:
  void CheckChoice(int layer, int64_t row, std::span<const float> weights,
                   const std::vector<int>& experts) {
    std::vector<int> taken;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] != 0) taken.push_back(static_cast<int>(i));
    }
    if (taken == experts) return;
    first_other_choice_ = absl::StrCat(
        Where(TapPoint::kExpertWeights, layer), " takes experts ", absl::StrJoin(taken, ", "),
        " for token ", row, ", whose logits are for experts ", absl::StrJoin(experts, ", "));
  }

  const std::span<const ForcedLayer> forced_;
  const int64_t first_token_;
  ActivationTap& to_;
  std::string first_other_choice_;
};

class Run {
 public:
  Run(const Model& model, Backend& backend)
      : step_tokens_(backend.info().max_step_tokens), backend_(backend) {
    const BackendInfo& info = backend.info();
    int64_t count = std::min(kSelfCheckReferenceTokens, model.spec().context_length);
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

  std::span<const int32_t> tokens(int count) const { return std::span(tokens_).first(count); }
  // Number of tokens that are run in every way.
  int count() const { return std::min(kSelfCheckTokens, static_cast<int>(tokens_.size())); }
  // Most tokens of a step that begins a sequence.
  int step_count() const { return std::min(step_tokens_, static_cast<int>(tokens_.size())); }

  // Runs tokens [first, first + count) and shows the activations.
  absl::Status Show(int first, int count, ActivationTap& tap) {
    for (const int end = first + count; first < end; first += step_tokens_) {
      const int part = std::min(step_tokens_, end - first);
      ORCD_RETURN_IF_ERROR(Step(first, part, /*sample=*/false, &tap).status());
    }
    return absl::OkStatus();
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

  const int step_tokens_;
  Backend& backend_;
  SamplingParams params_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> blocks_;
};

// Computes a layer by the reference, from the input that the backend had, and shows it to `tap`.
absl::Status RunReference(const ActivationRecorder& recorded, std::span<const int32_t> tokens,
                          int layer, LayerReference& reference, ActivationTap& tap) {
  std::span<const float> input;
  if (layer > 0) {
    const Rows* const before = recorded.Find(TapPoint::kLayer, layer - 1);
    if (before == nullptr || before->values.size() < tokens.size() * before->cols) {
      return Failed(absl::StrCat("layer ", layer - 1, " was not computed"));
    }
    input = std::span(before->values).first(tokens.size() * before->cols);
  }
  reference.RunLayer(tokens, layer, input, tap);
  return absl::OkStatus();
}

absl::Status CompareWithReference(const ActivationRecorder& whole, std::span<const int32_t> tokens,
                                  int layers, LayerReference& reference,
                                  absl::FunctionRef<absl::Status()> go_on) {
  const int last = layers - 1;
  const size_t count = tokens.size();
  for (int layer = 0; layer < layers; ++layer) {
    ORCD_RETURN_IF_ERROR(go_on());
    const bool all = layer == 0 || layer == last;
    const auto part = tokens.first(all ? count : std::min<size_t>(count, kMiddleTokens));
    Comparison comparison(whole, 0);
    ORCD_RETURN_IF_ERROR(RunReference(whole, part, layer, reference, comparison));
    if (!comparison.first_difference().empty()) return Failed(comparison.first_difference());
  }
  for (const int row : {0, static_cast<int>(count) - 1}) {
    Comparison comparison(whole, row);
    reference.RunHead(whole.Find(TapPoint::kLayer, last)->row(row), comparison);
    if (!comparison.first_difference().empty()) {
      return Failed(absl::StrCat(comparison.first_difference(), " at position ", row));
    }
  }
  return absl::OkStatus();
}

// Sends a token through each expert of the first and of the last layer that has experts, those left
// out that no token can take (ForceEachExpert), and compares the two layers with the reference
// (null: not compared).
absl::Status CheckExperts(const Model& model, Run& run, LayerReference* reference,
                          absl::FunctionRef<absl::Status()> go_on) {
  std::vector<int> layers;
  for (int i = 0; i < model.spec().num_layers(); ++i) {
    if (model.spec().layers[i].experts.count == 0) continue;
    if (layers.size() == 2) layers.pop_back();
    layers.push_back(i);
  }
  std::vector<ForcedLayer> forced;
  int tokens = 0;
  for (const int layer : layers) {
    std::vector<ForcedExperts> each = ForceEachExpert(
        model.spec().layers[layer].experts, model.weights().layers[layer].experts.selection_bias);
    if (each.empty()) continue;
    tokens = std::max(tokens, static_cast<int>(each.size()));
    forced.push_back({layer, std::move(each)});
  }
  const auto experts_of = [&](int layer, int64_t token) -> std::string {
    const ForcedLayer* const found = FindLayer(forced, layer);
    if (found == nullptr) return "";
    return absl::StrCat(" when it is sent through experts ",
                        absl::StrJoin(found->token(token).experts, ", "));
  };
  const int step = run.step_count();
  for (int first = 0; first < tokens; first += step) {
    ORCD_RETURN_IF_ERROR(go_on());
    const int count = std::min(step, tokens - first);
    ActivationRecorder recorded(layers, 0);
    ForcingTap forcing(forced, first, recorded);
    ORCD_RETURN_IF_ERROR(run.Show(0, count, forcing));
    if (!forcing.first_other_choice().empty()) return Failed(forcing.first_other_choice());
    if (!recorded.first_bad().empty()) {
      const int layer = std::max(recorded.bad_layer(), layers[0]);
      return Failed(
          absl::StrCat(recorded.first_bad(), experts_of(layer, first + recorded.bad_row())));
    }
    if (reference == nullptr) continue;
    for (const ForcedLayer& layer : forced) {
      ORCD_RETURN_IF_ERROR(go_on());
      Comparison comparison(recorded, 0, /*by_row=*/true);
      ForcingTap same(forced, first, comparison);
      ORCD_RETURN_IF_ERROR(
          RunReference(recorded, run.tokens(count), layer.layer, *reference, same));
      if (!comparison.first_difference().empty()) {
        return Failed(absl::StrCat(comparison.first_difference(), " for token ", comparison.row(),
                                   experts_of(layer.layer, first + comparison.row())));
      }
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
  const std::vector<int> ends = {0, model.spec().num_layers() - 1};
  ActivationRecorder whole(ends, kMiddleTokens);
  ORCD_RETURN_IF_ERROR(run.Show(0, count, whole));
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
    ORCD_RETURN_IF_ERROR(CompareWithReference(whole, run.tokens(count), model.spec().num_layers(),
                                              *reference, go_on));
  }
  ORCD_RETURN_IF_ERROR(CheckExperts(model, run, reference, go_on));
  for (int i = 0; i < count; ++i) {
    ORCD_RETURN_IF_ERROR(go_on());
    ORCD_ASSIGN_OR_RETURN(const SampledToken drawn, run.Draw(i, 1));
    ORCD_RETURN_IF_ERROR(CheckDraw(drawn, logits->row(i), i, "a step of one token"));
  }
  // Uses the keys and values that the steps of one token wrote.
  const int last = count - 1;
  // A recurrent state does not go back by a token.
  for (int i = 0; backend.info().recurrent && i < last; ++i) {
    ORCD_RETURN_IF_ERROR(run.Draw(i, 1).status());
  }
  ActivationRecorder single(ends, kMiddleTokens);
  ORCD_RETURN_IF_ERROR(run.Show(last, 1, single));
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
