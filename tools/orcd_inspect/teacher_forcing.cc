#include "tools/orcd_inspect/teacher_forcing.h"

#include <fstream>
#include <numeric>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace orcd {

absl::StatusOr<std::vector<int32_t>> ReadTokens(const std::string& path, const ModelSpec& spec) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  std::vector<int32_t> tokens;
  std::string word;
  while (file >> word) {
    int32_t token = 0;
    if (!absl::SimpleAtoi(word, &token) || token < 0 || token >= spec.vocab) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": token ", tokens.size(), " is `", word,
                                                     "`, not an id from 0 to ", spec.vocab - 1));
    }
    tokens.push_back(token);
  }
  if (tokens.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": holds no tokens"));
  if (tokens.size() > static_cast<size_t>(spec.context_length)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": holds ", tokens.size(),
                                                   " tokens, the model has ", spec.context_length,
                                                   " positions"));
  }
  return tokens;
}

BackendOptions TeacherForcingOptions(int64_t tokens, int step_tokens, KvType kv_type,
                                     const ModelSpec& spec) {
  BackendOptions options;
  options.max_seqs = 1;
  options.max_step_tokens = step_tokens;
  options.max_context = static_cast<int>(tokens);
  options.kv_type = kv_type;
  const KvLayout layout(spec.layers);
  // One block more than the tokens fill.
  options.kv_cache_bytes = (tokens + options.block_tokens) *
                           (layout.whole_size + layout.window_size) *
                           (kv_type == KvType::kF16 ? 2 : 4);
  return options;
}

absl::Status RunTokens(Backend& backend, std::span<const int32_t> tokens, int64_t first,
                       int64_t count, ActivationTap& tap) {
  const int64_t block_tokens = backend.info().block_tokens;
  std::vector<int32_t> blocks((first + count + block_tokens - 1) / block_tokens);
  std::iota(blocks.begin(), blocks.end(), 0);
  // There are enough of these for a window and a step, so that each is free when its turn comes.
  std::vector<int32_t> window_blocks;
  if (const int of_windows = backend.info().window_blocks; of_windows > 0) {
    for (const int32_t block : blocks) window_blocks.push_back(block % of_windows);
  }
  const SamplingParams params;
  StepBatch batch;
  batch.tap = &tap;
  StepSequence& seq = batch.seqs.emplace_back();
  if (first == 0) {
    seq.start_params = &params;
    seq.start_history = tokens;
  }
  seq.tokens = tokens.subspan(first, count);
  seq.start_position = static_cast<int32_t>(first);
  seq.blocks = blocks;
  seq.window_blocks = window_blocks;
  ORCD_RETURN_IF_ERROR(backend.Launch(batch));
  return backend.Wait().status();
}

}  // namespace orcd
