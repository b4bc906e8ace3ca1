// Writes models with random weights and the shapes, types, keys and tensor names of real ones, as
// llama.cpp would load them.
#ifndef ORCD_TESTING_RANDOM_MODEL_RANDOM_MODEL_H_
#define ORCD_TESTING_RANDOM_MODEL_RANDOM_MODEL_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orcd {

struct RandomModelOptions {
  // One of ModelShapeArchitectures().
  std::string architecture = "qwen2";
  // A size in AllModelShapes(). `nano` and `nano-moe` (hidden 256, 2 layers or as many as show all
  // kinds of layers, 1024 tokens) are written and loaded in milliseconds; the others are published
  // sizes.
  std::string size = "nano";
  // One of AllFileTypes(), such as `Q4_K_M`: the mixture that llama.cpp writes under that name.
  std::string type = "Q8_0";
  // The same options give the same bytes, however many threads write them.
  uint64_t seed = 1;
  // A GGUF file to copy the tokenizer and chat template from; empty: a made-up vocabulary that
  // encodes any text and any chat. The model has as many embedding rows as its size or its
  // vocabulary needs, whichever is more.
  std::string vocab_from = {};
  // Number of files to split the model over; 1: not split.
  int split = 1;
  // 0: one per core.
  int threads = 0;

  // If set, these replace the values of the size or of the vocabulary.
  std::optional<int> layers = {};
  // For architectures whose files may hold layers that predict further tokens.
  std::optional<int> predict_layers = {};
  std::optional<bool> tied = {};
  std::optional<uint32_t> context_length = {};
  // For architectures whose layers have windows; as many as the context: no layer has one.
  std::optional<int> window = {};
  // Empty: the file has no template.
  std::optional<std::string> chat_template = {};
};

// Writes the model to `path`. A split model is written to `path` without its extension plus
// `-00001-of-0000N.gguf` and so on. A file gets its name once it is complete. Returns the path of
// the (first) file. kInvalidArgument for an unknown architecture, size or type or a split that
// leaves a file without tensors; else the errors of GgufWriter and, for the vocabulary, GgufReader.
absl::StatusOr<std::string> WriteRandomModel(const RandomModelOptions& options,
                                             const std::string& path);

}  // namespace orcd

#endif  // ORCD_TESTING_RANDOM_MODEL_RANDOM_MODEL_H_
