// make-model: writes a GGUF of any architecture with random weights, for tests and benchmarks.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "testing/random_model/model_shapes.h"
#include "testing/random_model/random_model.h"

int main(int argc, char** argv) {
  CLI::App app("Writes a GGUF of random weights in the shape and types of a real model.",
               "make-model");
  orcd::RandomModelOptions options;
  std::string path;
  // In the order of the table, each size once; not every architecture has each.
  std::vector<std::string> sizes;
  for (const orcd::RandomModelShape& shape : orcd::AllModelShapes()) {
    if (std::ranges::count(sizes, shape.size) == 0) sizes.emplace_back(shape.size);
  }
  std::vector<std::string> types;
  for (const orcd::FileType& type : orcd::AllFileTypes()) types.emplace_back(type.name);
  app.add_option("--arch", options.architecture, "Architecture of the model")
      ->check(CLI::IsMember(orcd::ModelShapeArchitectures()))
      ->capture_default_str();
  app.add_option("--size", options.size, "Size of the model, one that the architecture has")
      ->check(CLI::IsMember(sizes))
      ->capture_default_str();
  app.add_option("--type", options.type, "Tensor types, mixed as llama.cpp mixes them")
      ->check(CLI::IsMember(types))
      ->capture_default_str();
  app.add_option("--layers", options.layers, "Layers, in place of the size's")
      ->check(CLI::PositiveNumber);
  app.add_option("--predict-layers", options.predict_layers,
                 "Layers after those that predict further tokens, in place of the size's")
      ->check(CLI::NonNegativeNumber);
  app.add_option(
         "--window", options.window,
         "Positions that the layers with a window attend to, in place of the architecture's; "
         "as many as the context: all layers attend to all")
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed, "The same seed gives the same bytes")
      ->capture_default_str();
  app.add_option("--vocab-from", options.vocab_from,
                 "GGUF file whose tokenizer and chat template to take; else a made-up vocabulary")
      ->check(CLI::ExistingFile);
  app.add_option("--split", options.split, "Files to split the model over")
      ->check(CLI::Range(1, 9999))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "0: one a core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--out", path, "File to write")->required();
  CLI11_PARSE(app, argc, argv);

  const auto written = orcd::WriteRandomModel(options, path);
  if (!written.ok()) {
    std::fprintf(stderr, "make-model: %s\n", std::string(written.status().message()).c_str());
    return 1;
  }
  std::printf("%s\n", written->c_str());
  return 0;
}
