#include "tools/orcd_inspect/check_command.h"

#include <iostream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "runtime/base/error.h"
#include "runtime/cpu/cpu_backend.h"
#include "runtime/cpu/host_info.h"
#include "runtime/engine/load_model.h"

namespace orcd {
namespace {

struct CheckOptions {
  std::string path;
  std::string sha256;
};

// Runs all of Load, including the self-check, so that no file passes here and fails there.
absl::StatusOr<std::unique_ptr<Engine>> Load(const CheckOptions& options) {
  LoadModelOptions load;
  load.model.expected_sha256 = options.sha256;
  load.model.threads = cpu::UsableCores();
  NullLoadObserver observer;
  return LoadModel(
      options.path, load, {.make = CreateCpuBackend}, [](const absl::Status&) {}, observer);
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
  for (const std::string& warning : model.Warnings()) text += "    warning: " + warning + "\n";
  return text;
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
  command->callback([options, &exit_code] {
    const auto engine = Load(*options);
    exit_code = engine.ok() ? 0 : 1;
    if (engine.ok()) {
      std::cout << Describe(**engine) << std::flush;
      return;
    }
    const std::string reason = GetErrorDetails(engine.status()).reason;
    std::cerr << "orcd-inspect check: " << engine.status().message()
              << (reason.empty() ? "" : " [" + reason + "]") << '\n';
  });
}

}  // namespace orcd
