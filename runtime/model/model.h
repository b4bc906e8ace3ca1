// A model that is ready to be computed: a checked file, with the spec, weights, tokenizer and
// chat template that the engine needs.
#ifndef ORCD_RUNTIME_MODEL_MODEL_H_
#define ORCD_RUNTIME_MODEL_MODEL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/base/load_observer.h"
#include "runtime/gguf/gguf_reader.h"
#include "runtime/model/rope_override.h"
#include "runtime/model/sampling_defaults.h"
#include "runtime/model/spec.h"
#include "runtime/model/weights.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/tokenizer.h"

namespace orcd {

struct ModelLoadOptions {
  // SHA-256, in hex, that the (first) file must have; empty: not checked.
  std::string expected_sha256 = {};
  // Number of threads that read and check.
  int threads = 1;
  // False to inspect the numbers of a file whose vocabulary encodes no text. tokenizer() and
  // chat_template() must not be called then.
  bool with_text = true;
  // True if the file's sampling parameters (`general.sampling.*`) are read.
  bool sampling_defaults = true;
  // Scales RoPE of a file that does not scale it itself; see OverrideRopeScaling.
  std::optional<RopeOverride> rope_scaling = {};
};

// Immutable; any thread may read. Owns the mapped files; the weights view them.
class Model {
 public:
  // Opens the file and checks everything that can be checked without computing: format, metadata,
  // shapes, tokenizer, finiteness, digest. A backend can run every model that passes. Errors are
  // those of the parts; their messages begin with the file's path.
  static absl::StatusOr<std::shared_ptr<const Model>> Load(const std::string& path,
                                                           const ModelLoadOptions& options,
                                                           LoadObserver& observer);

  // Like GgufReader::CheckIntact, but a file of which only the modification time has changed is
  // read again, by `threads` threads, and is intact if the digest is unchanged. The digest is
  // checked before this returns, so results computed from the bytes meanwhile are valid. Any
  // thread; one reads at a time.
  absl::Status CheckIntact(int threads) const;
  // Last time at which CheckIntact read a part of a touched file, on the SteadyNow clock; long ago
  // if it has read none. Any thread.
  absl::Time read_again_at() const {
    return absl::FromUnixNanos(read_again_at_.load(std::memory_order_relaxed));
  }

  // Differences between the worker's behaviour and what the file asks for, one sentence each.
  std::vector<std::string> Warnings() const;

  const GgufReader& gguf() const { return *gguf_; }
  const ModelSpec& spec() const { return spec_; }
  const ModelWeights& weights() const { return weights_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ChatTemplate& chat_template() const { return chat_template_; }
  // The sampling parameters that the file recommends.
  const PartialSampling& sampling_defaults() const { return sampling_defaults_.params; }

  // `sha256-tree:` and 64 hex digits; see VerifyFiles.
  const std::string& digest() const { return digest_; }
  uint64_t parameters() const { return parameters_; }
  uint64_t size_bytes() const { return gguf_->total_bytes(); }
  // Tensor types of the matrices, with the number of matrices of each, such as `Q5_0 133, Q8_0 13,
  // Q4_K 12, Q6_K 12`.
  const std::string& quantization() const { return quantization_; }

 private:
  Model() = default;
  // Reads everything but the weights' bytes.
  absl::Status ReadMetadata(const ModelLoadOptions& options);

  std::unique_ptr<GgufReader> gguf_;
  ModelSpec spec_;
  ModelWeights weights_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  ChatTemplate chat_template_;
  SamplingDefaults sampling_defaults_;
  std::string digest_;
  uint64_t parameters_ = 0;
  std::string quantization_;

  mutable std::mutex recheck_mutex_;
  // In nanoseconds.
  mutable std::atomic<int64_t> read_again_at_ = 0;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_MODEL_H_
