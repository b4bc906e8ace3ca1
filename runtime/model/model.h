// A model that is ready to be computed: checked, and with everything the engine needs to know of
// it.
#ifndef ORCD_RUNTIME_MODEL_MODEL_H_
#define ORCD_RUNTIME_MODEL_MODEL_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/gguf/gguf_reader.h"
#include "runtime/load_observer.h"
#include "runtime/model/config.h"
#include "runtime/model/weights.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/tokenizer.h"

namespace orcd {

struct ModelLoadOptions {
  // Hex SHA-256 the (first) file must have; empty: not checked.
  std::string expected_sha256 = {};
  // Threads that read and check.
  int threads = 1;
  // False: for a look at the numbers of a file whose vocabulary encodes no text. tokenizer() and
  // chat_template() must not be asked for then.
  bool with_text = true;
};

// Immutable; any thread may read. Owns the mapped files that its weights and its tokenizer view.
class Model {
 public:
  // Opens and checks everything that can be checked without computing: format, metadata, shapes,
  // tokenizer, finiteness, digest. What this accepts, a backend can run. Errors are those of the
  // parts; their messages begin with the file's path.
  static absl::StatusOr<std::shared_ptr<const Model>> Load(const std::string& path,
                                                           const ModelLoadOptions& options,
                                                           LoadObserver& observer);

  // As GgufReader::CheckIntact, but a file whose modification time alone has changed is read again,
  // by so many threads, and is intact where the digest is what it was. The bytes are held to the
  // digest before the caller goes on: whatever was computed from them meanwhile is good. Any
  // thread; one reads at a time.
  absl::Status CheckIntact(int threads) const;

  // What the worker does otherwise than the file asks for, a sentence each.
  std::vector<std::string> Warnings() const;

  const GgufReader& gguf() const { return *gguf_; }
  const ModelConfig& config() const { return config_; }
  const ModelWeights& weights() const { return weights_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ChatTemplate& chat_template() const { return chat_template_; }

  // `sha256-tree:` and 64 hex digits; see VerifyFiles.
  const std::string& digest() const { return digest_; }
  uint64_t parameters() const { return parameters_; }
  uint64_t size_bytes() const { return gguf_->total_bytes(); }
  // Matrix types by how many matrices have them, such as `Q5_0 133, Q8_0 13, Q4_K 12, Q6_K 12`.
  const std::string& quantization() const { return quantization_; }

 private:
  Model() = default;
  // Everything but the weights' bytes.
  absl::Status ReadMetadata(bool with_text);

  std::unique_ptr<GgufReader> gguf_;
  ModelConfig config_;
  ModelWeights weights_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  ChatTemplate chat_template_;
  std::string digest_;
  uint64_t parameters_ = 0;
  std::string quantization_;

  mutable std::mutex recheck_mutex_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_MODEL_H_
