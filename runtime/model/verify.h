// Reads every byte of a model once: are the weights numbers, and which model is it?
#ifndef ORCD_RUNTIME_MODEL_VERIFY_H_
#define ORCD_RUNTIME_MODEL_VERIFY_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/gguf/gguf_reader.h"
#include "runtime/load_observer.h"

namespace orcd {

// The digest's chunks: a file's bytes from k * kDigestChunk on.
inline constexpr uint64_t kDigestChunk = uint64_t{64} << 20;

struct VerifyOptions {
  // Hex SHA-256 the first file must have, in either case; empty: not checked.
  std::string expected_sha256;
  // Threads that read, this one included; at least 1.
  int threads = 1;
};

// kInvalidArgument (field `sha256`) unless `text` is empty or 64 hexadecimal digits.
absl::Status CheckSha256Text(std::string_view text);

// The digest that VerifyFiles gives, of the bytes as they are now, and no check of anything.
std::string DigestFiles(const GgufReader& gguf, int threads);

// Returns the model's digest: `sha256-tree:` and 64 hex digits, the SHA-256 of the concatenated
// SHA-256 sums of the files' 64 MiB chunks, file by file. A tree, so that it can be computed by
// many threads at once.
//
// Errors, the first that applies:
//   kCancelled (LOAD_CANCELLED)             the observer says so
//   kDataLoss (FILE_CHANGED)                a file is no longer what it was when it was opened
//   kDataLoss (SHA256_MISMATCH)             the first file has another sum than expected
//   kInvalidArgument (WEIGHTS_NOT_FINITE)   a weight or a block's scale is NaN or infinite; names
//                                           the first tensor, in the order of the bytes, and its
//                                           row
// Reports LoadStage::kVerify, every MiB. The sum of a whole file cannot be shared among threads, so
// expecting one adds a second reading of the first file, and progress counts it.
absl::StatusOr<std::string> VerifyFiles(const GgufReader& gguf, const VerifyOptions& options,
                                        LoadObserver& observer);

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_VERIFY_H_
