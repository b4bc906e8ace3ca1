#include "tools/orcd_inspect/check_command.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "runtime/base/error.h"
#include "runtime/cpu/cpu_backend.h"
#include "runtime/cpu/host_info.h"
#include "runtime/engine/load_model.h"
#include "runtime/gguf/gguf_reader.h"
#include "runtime/model/architectures.h"
#include "runtime/model/predict_block.h"
#include "runtime/model/weights.h"
#include "runtime/text/tokenizer.h"
#include "tools/orcd_inspect/rope_scaling.h"

namespace orcd {
namespace {

struct CheckOptions {
  std::string path;
  std::string sha256;
  std::optional<RopeOverride> rope_scaling;
};

// Runs all of Load, including the self-check, so that no file passes here and fails there.
absl::StatusOr<std::unique_ptr<Engine>> Load(const CheckOptions& options) {
  LoadModelOptions load;
  load.model.expected_sha256 = options.sha256;
  load.model.threads = cpu::UsableCores();
  load.model.rope_scaling = options.rope_scaling;
  NullLoadObserver observer;
  return LoadModel(
      options.path, load, {.make = CreateCpuBackend}, [](const absl::Status&) {}, observer);
}

// Tells if --draft mtp can use the first layer that predicts.
std::string UseOfBlock(const Model& model) {
  const auto block = PredictBlock::FromGguf(model.gguf(), model.spec(), model.weights());
  if (!block.ok()) {
    return absl::StrFormat("--draft mtp refuses the file: %s",
                           std::string(block.status().message()));
  }
  return block->has_value() ? "--draft mtp can use it" : "the file holds no tensors of it";
}

std::string Describe(const Engine& engine) {
  const Model& model = engine.model();
  const ModelSpec& spec = model.spec();
  std::string text = absl::StrFormat(
      "OK: %s, %s, %d layers, hidden %d, vocabulary %d, context %d\n"
      "    %d parameters (%s), %s\n"
      "    chat supported: %s\n",
      spec.name, spec.architecture, spec.num_layers(), spec.hidden, spec.vocab, spec.context_length,
      model.parameters(), model.quantization(), model.digest(),
      model.chat_template().supported() ? "yes" : "no");
  if (const int window = spec.window(); window > 0) {
    const auto local = [](const LayerSpec& layer) { return layer.window > 0; };
    text += absl::StrFormat("    window: %d positions in %d layers\n", window,
                            std::ranges::count_if(spec.layers, local));
  }
  if (spec.recurrent()) {
    text += absl::StrFormat("    recurrent: %d of the layers, %d bytes of state a sequence\n",
                            std::ranges::count_if(spec.layers, &LayerSpec::recurrent),
                            spec.state_floats() * static_cast<int64_t>(sizeof(float)));
  }
  const auto has_experts = [](const LayerSpec& layer) { return layer.experts.count > 0; };
  if (const auto layer = std::ranges::find_if(spec.layers, has_experts);
      layer != spec.layers.end()) {
    const ExpertsSpec& experts = layer->experts;
    text += absl::StrFormat(
        "    experts: %d of %d in %d layers, width %d%s\n", experts.used, experts.count,
        std::ranges::count_if(spec.layers, has_experts), experts.ffn,
        experts.shared_ffn == 0 ? ""
                                : absl::StrFormat(", and a shared one of %d", experts.shared_ffn));
  }
  if (const int skipped = spec.skipped_layers; skipped > 0) {
    text += absl::StrFormat("    left out: %d %s further tokens; %s\n", skipped,
                            skipped == 1 ? "layer that predicts" : "layers that predict",
                            UseOfBlock(model));
  }
  for (const std::string& warning : model.Warnings()) text += "    warning: " + warning + "\n";
  return text;
}

// Further causes for which Load, which tells of the first one, would refuse the file.
std::vector<absl::Status> FurtherRefusals(const std::string& path, const absl::Status& first) {
  std::vector<absl::Status> refusals;
  const auto gguf = GgufReader::Open(path, AllowedTensorTypes::kSized);
  if (!gguf.ok()) return refusals;
  const auto add = [&](const absl::Status& status) {
    // Load puts the path before the message.
    if (!status.ok() && !absl::StrContains(first.message(), status.message())) {
      refusals.push_back(status);
    }
  };
  const auto spec = ReadModelSpec(**gguf);
  add(spec.ok() ? ModelWeights::FromGguf(**gguf, *spec).status() : spec.status());
  add(Tokenizer::FromGguf(**gguf).status());
  return refusals;
}

void PrintRefusal(const absl::Status& status) {
  const std::string reason = GetErrorDetails(status).reason;
  std::cerr << "orcd-inspect check: " << status.message()
            << (reason.empty() ? "" : " [" + reason + "]") << '\n';
}

}  // namespace

void AddCheckCommand(CLI::App& app, int& exit_code) {
  const auto options = std::make_shared<CheckOptions>();
  CLI::App* command = app.add_subcommand(
      "check",
      "Load a file as a worker would, and say what it would refuse; exits 0 only where it "
      "would accept");
  command->add_option("FILE", options->path, "GGUF file; the first one where it is split")
      ->required();
  command->add_option("--sha256", options->sha256, "Hex SHA-256 that the (first) file has to have")
      ->type_name("HEX");
  AddRopeScalingOption(*command, options->rope_scaling);
  command->callback([options, &exit_code] {
    const auto engine = Load(*options);
    exit_code = engine.ok() ? 0 : 1;
    if (engine.ok()) {
      std::cout << Describe(**engine) << std::flush;
      return;
    }
    PrintRefusal(engine.status());
    for (const absl::Status& status : FurtherRefusals(options->path, engine.status())) {
      PrintRefusal(status);
    }
  });
}

}  // namespace orcd
