// Reads every byte of a model once, to compute its digest and to check that all weights are finite.
#ifndef ORCD_RUNTIME_MODEL_VERIFY_H_
#define ORCD_RUNTIME_MODEL_VERIFY_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/load_observer.h"
#include "runtime/gguf/gguf_reader.h"

namespace orcd {

// Chunk size of the digest: chunk k of a file begins at byte k * kDigestChunk.
inline constexpr uint64_t kDigestChunk = uint64_t{64} << 20;

struct VerifyOptions {
  // SHA-256, in hex of either case, that the first file must have; empty: not checked.
  std::string expected_sha256;
  // Number of threads that read, including the calling thread; at least 1.
  int threads = 1;
};

// kInvalidArgument (field `sha256`) unless `text` is empty or 64 hexadecimal digits.
absl::Status CheckSha256Text(std::string_view text);

// Computes the digest that VerifyFiles returns, from the bytes as they are now, without any checks.
// Reports its progress as VerifyFiles does, to an observer that does not cancel.
std::string DigestFiles(const GgufReader& gguf, int threads, LoadObserver& observer);

// Returns the model's digest: `sha256-tree:` and 64 hex digits, the SHA-256 of the concatenated
// SHA-256 sums of the files' 64 MiB chunks, file by file. The tree form lets many threads compute
// it at once.
//
// Errors, the first that applies:
//   kCancelled (LOAD_CANCELLED)             the observer has cancelled
//   kDataLoss (FILE_CHANGED)                a file has changed since it was opened
//   kDataLoss (SHA256_MISMATCH)             the first file has another sum than expected
//   kInvalidArgument (WEIGHTS_NOT_FINITE)   a weight or a block's scale is NaN or infinite; names
//                                           the first such tensor, in the order of the bytes, and
//                                           the expert, if it holds several, and the row
// Reports LoadStage::kVerify, every MiB. The sum of a whole file cannot be shared among threads, so
// `expected_sha256` adds a second reading of the first file, which the progress includes.
absl::StatusOr<std::string> VerifyFiles(const GgufReader& gguf, const VerifyOptions& options,
                                        LoadObserver& observer);

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_VERIFY_H_
