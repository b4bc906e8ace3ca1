#include "tools/orcd_inspect/logits_command.h"

#include <algorithm>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/backend/backend.h"
#include "runtime/base/error.h"
#include "runtime/base/load_observer.h"
#include "runtime/cpu/predictor.h"
#include "runtime/model/model.h"
#include "tools/orcd_inspect/backends.h"
#include "tools/orcd_inspect/npy.h"
#include "tools/orcd_inspect/rope_scaling.h"
#include "tools/orcd_inspect/teacher_forcing.h"

namespace orcd {
namespace {

// Bounds memory: all logits of a step are held at once, 152k per token in Qwen2.5.
constexpr int kDefaultStepTokens = 64;

struct Options {
  std::string model;
  std::optional<RopeOverride> rope_scaling;
  int step_tokens = kDefaultStepTokens;
  std::string backend = "cpu";
  std::string tokens;
  std::string out;
  std::string kv = "f16";
  // Empty: no predictions are written.
  std::string mtp;
  // Number of tokens after which the recurrent state is written, and the file; 0: it is not.
  std::pair<int64_t, std::string> state_after;
};

// Writes logits, and keeps what the head takes if it is wanted.
class LogitsWriter : public ActivationTap {
 public:
  LogitsWriter(NpyWriter& out, bool keep_hidden) : out_(out), keep_hidden_(keep_hidden) {}

  void OnActivation(TapPoint point, int, std::span<const float> values, int64_t, int64_t) override {
    if (point == TapPoint::kLogits) out_.Append(values);
    if (point != TapPoint::kOutputNorm || !keep_hidden_) return;
    hidden_.insert(hidden_.end(), values.begin(), values.end());
  }
  std::span<const float> hidden() const { return hidden_; }

 private:
  NpyWriter& out_;
  const bool keep_hidden_;
  std::vector<float> hidden_;
};

// The predictions of each token but the first, from what the head took before it.
absl::Status WritePredictions(const std::shared_ptr<const Model>& model, KvType kv_type,
                              std::span<const int32_t> tokens, std::span<const float> hidden,
                              const std::string& path) {
  const int64_t rows = std::ssize(tokens) - 1;
  ORCD_ASSIGN_OR_RETURN(
      const auto predictor,
      CreateCpuPredictor(model, kv_type, static_cast<int>(tokens.size()), /*threads=*/0));
  if (predictor == nullptr) {
    return absl::InvalidArgumentError(
        "--mtp: the file holds no block that predicts further tokens; leave it out");
  }
  const Predictions predicted =
      predictor->Run(tokens.subspan(1), hidden.first(rows * model->spec().hidden), 0);
  ORCD_ASSIGN_OR_RETURN(NpyWriter out, NpyWriter::Create(path, rows, model->spec().vocab));
  out.Append(predicted.logits);
  return out.Finish();
}

absl::Status WriteState(const Backend& backend, const std::string& path) {
  const std::vector<float> state = backend.RecurrentState(0);
  ORCD_ASSIGN_OR_RETURN(NpyWriter out,
                        NpyWriter::Create(path, 1, static_cast<int64_t>(state.size())));
  out.Append(state);
  return out.Finish();
}

absl::Status CheckStateAfter(const Options& options, const ModelSpec& spec, int64_t tokens) {
  const int64_t after = options.state_after.first;
  if (options.state_after.second.empty()) return absl::OkStatus();
  if (!spec.recurrent()) {
    return absl::InvalidArgumentError(
        "--state-after: no layer of the model is recurrent, so there is no state; leave it out");
  }
  if (after >= 1 && after <= tokens) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--state-after: ", after, " has to be from 1 to the ", tokens, " tokens"));
}

absl::Status WriteLogits(const Options& options) {
  NullLoadObserver observer;
  ORCD_ASSIGN_OR_RETURN(
      const auto model,
      Model::Load(options.model, {.with_text = false, .rope_scaling = options.rope_scaling},
                  observer));
  const ModelSpec& spec = model->spec();
  ORCD_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, ReadTokens(options.tokens, spec));
  const int64_t count = static_cast<int64_t>(tokens.size());
  ORCD_RETURN_IF_ERROR(CheckStateAfter(options, spec, count));
  const int64_t state_after = options.state_after.second.empty() ? 0 : options.state_after.first;
  const KvType kv_type = options.kv == "f32" ? KvType::kF32 : KvType::kF16;
  ORCD_ASSIGN_OR_RETURN(
      const auto backend,
      CreateBackend(options.backend, model,
                    TeacherForcingOptions(count, options.step_tokens, kv_type, spec)));
  ORCD_ASSIGN_OR_RETURN(NpyWriter out, NpyWriter::Create(options.out, count, spec.vocab));
  LogitsWriter tap(out, !options.mtp.empty());
  for (int64_t first = 0, step = 0; first < count; first += step) {
    step = std::min<int64_t>(options.step_tokens, count - first);
    if (first < state_after) step = std::min(step, state_after - first);
    ORCD_RETURN_IF_ERROR(RunTokens(*backend, tokens, first, step, tap));
    if (first + step == state_after) {
      ORCD_RETURN_IF_ERROR(WriteState(*backend, options.state_after.second));
    }
  }
  ORCD_RETURN_IF_ERROR(out.Finish());
  if (options.mtp.empty()) return absl::OkStatus();
  return WritePredictions(model, kv_type, tokens, tap.hidden(), options.mtp);
}

}  // namespace

void AddLogitsCommand(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "logits", "Write the logits after each of given tokens, float32 [tokens, vocab]");
  command->add_option("--model", options->model, "GGUF file")->required();
  AddRopeScalingOption(*command, options->rope_scaling);
  command->add_option("--backend", options->backend, "Device that computes")
      ->check(CLI::IsMember(BackendNames()))
      ->capture_default_str();
  command->add_option("--tokens", options->tokens, "File of token ids, separated by whitespace")
      ->required();
  command->add_option("--out", options->out, "NumPy file to write")->required();
  command->add_option("--kv", options->kv, "Type of the KV cache")
      ->check(CLI::IsMember({"f16", "f32"}))
      ->capture_default_str();
  command->add_option("--step-tokens", options->step_tokens, "Tokens that are run at once")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option(
      "--mtp", options->mtp,
      "NumPy file for what the file's block for multi-token prediction predicts, computed on the "
      "CPU: row p, of token p + 1 and what the head took at p, are the logits of token p + 2");
  command
      ->add_option("--state-after", options->state_after,
                   "Number of tokens, and a NumPy file to which the recurrent state after them is "
                   "written: of each recurrent layer in turn the last inputs of its convolution, "
                   "[taps - 1, channels], and its matrices, [value heads, keys, values]")
      ->type_name("N OUT");
  command->callback([options, &exit_code] {
    const absl::Status status = WriteLogits(*options);
    if (status.ok()) return;
    std::cerr << "orcd-inspect: " << status.message() << "\n";
    exit_code = 1;
  });
}

}  // namespace orcd
