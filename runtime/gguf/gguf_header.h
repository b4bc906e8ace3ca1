// The part of a GGUF file before the tensor data: metadata and tensor infos, parsed and checked.
#ifndef ORCD_RUNTIME_GGUF_GGUF_HEADER_H_
#define ORCD_RUNTIME_GGUF_GGUF_HEADER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/gguf/block_formats.h"
#include "runtime/gguf/gguf_value.h"

namespace orcd {

// A view of one tensor's bytes. Does not own them: the GgufReader does.
struct TensorView {
  std::string_view name;
  TensorType type = TensorType::kF32;
  // ne[0] is contiguous; dimensions past n_dims are 1.
  std::array<uint64_t, 4> ne = {1, 1, 1, 1};
  uint32_t n_dims = 0;
  std::span<const std::byte> data;

  uint64_t element_count() const { return ne[0] * ne[1] * ne[2] * ne[3]; }
  uint64_t row_length() const { return ne[0]; }
  uint64_t row_count() const { return ne[1] * ne[2] * ne[3]; }
  // Bytes of one row of ne[0] weights.
  uint64_t row_bytes() const;
};

// The tensor types that a file may hold.
enum class AllowedTensorTypes {
  // The types that Dequantize reads.
  kReadable,
  // Any type whose size is known (FindSizedTensorType): enough to inspect a file.
  kSized,
};

// Views the bytes from which it was parsed.
struct GgufHeader {
  uint32_t version = 0;
  // Alignment of the tensors within the file, in bytes: a power of two, at least 8.
  uint32_t alignment = 32;
  // Metadata keys, in the order of the file.
  std::vector<std::string_view> keys;
  std::map<std::string_view, GgufEntry> entries;
  // In the order of the file. Each tensor lies entirely within the file, is aligned, and overlaps
  // no other.
  std::vector<TensorView> tensors;
};

// Parses one whole file. Never reads past the end of `file`, whatever it holds, and allocates no
// more than a fixed multiple of its size. Fails with
//   GGUF_TRUNCATED    kInvalidArgument   something reaches past the end of the file
//   GGUF_MALFORMED    kInvalidArgument   the file breaks a rule of the format
//   GGUF_UNSUPPORTED  kUnimplemented     a version, byte order or type that is not read here
// and a message that says what is wrong, where, and what to do.
absl::StatusOr<GgufHeader> ParseGgufHeader(std::span<const std::byte> file,
                                           AllowedTensorTypes allowed_types);

// Returns `text` in quotes for a message: characters that are not printable ASCII are escaped, long
// text is cut.
std::string QuoteForMessage(std::string_view text);

}  // namespace orcd

#endif  // ORCD_RUNTIME_GGUF_GGUF_HEADER_H_
