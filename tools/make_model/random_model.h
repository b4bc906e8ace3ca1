// Writes Qwen2 models of random weights: the shapes, types, metadata and tokenizer of real ones.
#ifndef ORCD_TOOLS_MAKE_MODEL_RANDOM_MODEL_H_
#define ORCD_TOOLS_MAKE_MODEL_RANDOM_MODEL_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orcd {

struct RandomModelOptions {
  // One of AllQwen2Shapes(). `nano` (hidden 256, 2 layers, 1024 tokens) is written and loaded in
  // milliseconds; the others are the published sizes.
  std::string size = "nano";
  // One of AllFileTypes(), such as `Q4_K_M`: the mixture that llama.cpp writes under that name.
  std::string type = "Q8_0";
  // The same options give the same bytes, however many threads write them.
  uint64_t seed = 1;
  // A GGUF file whose tokenizer and chat template to take; empty: a made-up vocabulary that encodes
  // any text and any chat. The model has as many rows as the larger of the two needs.
  std::string vocab_from = {};
  // Files to split the model over; 1: not split.
  int split = 1;
  // 0: one a core.
  int threads = 0;

  // Where these are set they stand instead of what the size, or the vocabulary, has.
  std::optional<int> layers = {};
  std::optional<bool> tied = {};
  std::optional<uint32_t> context_length = {};
  // Empty: no template in the file.
  std::optional<std::string> chat_template = {};
};

// Writes the model to `path`, or over `path` without its ending plus `-00001-of-0000N.gguf` and so
// on where it is split. A file gets its name once it is whole. Returns the path of the (first)
// file. kInvalidArgument for an unknown size or type or a split that leaves a file without tensors;
// else the errors of GgufWriter and, for the vocabulary, GgufReader.
absl::StatusOr<std::string> WriteRandomModel(const RandomModelOptions& options,
                                             const std::string& path);

}  // namespace orcd

#endif  // ORCD_TOOLS_MAKE_MODEL_RANDOM_MODEL_H_
