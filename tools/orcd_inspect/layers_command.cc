#include "tools/orcd_inspect/layers_command.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "runtime/backend/backend.h"
#include "runtime/base/error.h"
#include "runtime/base/load_observer.h"
#include "runtime/model/model.h"
#include "tools/orcd_inspect/activation_diff.h"
#include "tools/orcd_inspect/backends.h"
#include "tools/orcd_inspect/rope_scaling.h"
#include "tools/orcd_inspect/teacher_forcing.h"

namespace orcd {
namespace {

// Bounds memory: all activations of a step are held at once.
constexpr int kDefaultStepTokens = 16;

struct Options {
  std::string model;
  std::optional<RopeOverride> rope_scaling;
  int step_tokens = kDefaultStepTokens;
  std::string tokens;
  std::string a;
  std::string b;
  double tolerance = 1e-3;
};

absl::Status Compare(const Options& options, ActivationDiff& diff) {
  NullLoadObserver observer;
  ORCD_ASSIGN_OR_RETURN(
      const auto model,
      Model::Load(options.model, {.with_text = false, .rope_scaling = options.rope_scaling},
                  observer));
  const ModelSpec& spec = model->spec();
  ORCD_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, ReadTokens(options.tokens, spec));
  const int64_t count = static_cast<int64_t>(tokens.size());
  // Sizes the cache for F32, the wider type; each backend uses the type that its name says.
  BackendOptions room = TeacherForcingOptions(count, options.step_tokens, KvType::kF32, spec);
  room.kv_type = KvType::kF16;
  ORCD_ASSIGN_OR_RETURN(const auto a, CreateBackend(options.a, model, room));
  ORCD_ASSIGN_OR_RETURN(const auto b, CreateBackend(options.b, model, room));
  for (int64_t first = 0; first < count; first += options.step_tokens) {
    const int64_t step = std::min<int64_t>(options.step_tokens, count - first);
    ORCD_RETURN_IF_ERROR(RunTokens(*a, tokens, first, step, diff.a()));
    ORCD_RETURN_IF_ERROR(RunTokens(*b, tokens, first, step, diff.b()));
    ORCD_RETURN_IF_ERROR(diff.FinishStep());
  }
  return absl::OkStatus();
}

void PrintTable(const ActivationDiff& diff) {
  std::cout << absl::StrFormat("%5s  %-14s  %10s  %10s  %9s  %9s\n", "layer", "operation", "NMSE",
                               "max error", "NaN/Inf a", "NaN/Inf b");
  for (const OperationDiff& operation : diff.operations()) {
    const std::string layer = operation.layer < 0 ? "" : std::to_string(operation.layer);
    std::cout << absl::StrFormat("%5s  %-14s  %10.2e  %10.2e  %9d  %9d\n", layer,
                                 NameOf(operation.point), operation.Nmse(), operation.max_error,
                                 operation.nonfinite_a, operation.nonfinite_b);
  }
}

int Run(const Options& options) {
  ActivationDiff diff;
  if (const absl::Status status = Compare(options, diff); !status.ok()) {
    std::cerr << "orcd-inspect: " << status.message() << "\n";
    return 1;
  }
  PrintTable(diff);
  for (const OperationDiff& operation : diff.operations()) {
    if (operation.Nmse() <= options.tolerance) continue;
    std::cout << absl::StrFormat(
        "\n%s is the first past tolerance: NMSE %.2e, allowed %.2e; %d and %d NaN or infinity\n",
        operation.Label(), operation.Nmse(), options.tolerance, operation.nonfinite_a,
        operation.nonfinite_b);
    return 2;
  }
  std::cout << absl::StrFormat("\nevery operation is within NMSE %.2e\n", options.tolerance);
  return 0;
}

}  // namespace

void AddLayersCommand(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "layers", "Compare two backends, operation by operation, on the same tokens");
  command->add_option("--model", options->model, "GGUF file")->required();
  AddRopeScalingOption(*command, options->rope_scaling);
  command->add_option("--tokens", options->tokens, "File of token ids, separated by whitespace")
      ->required();
  command->add_option("--a", options->a, "Backend to judge")
      ->required()
      ->check(CLI::IsMember(BackendNames()));
  command->add_option("--b", options->b, "Backend to judge it by")
      ->required()
      ->check(CLI::IsMember(BackendNames()));
  command->add_option("--tolerance", options->tolerance, "Greatest NMSE that passes")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--step-tokens", options->step_tokens, "Tokens that are run at once")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->callback([options, &exit_code] { exit_code = Run(*options); });
}

}  // namespace orcd
