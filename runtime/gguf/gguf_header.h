// What stands before the data in a GGUF file: metadata and tensor infos, parsed and checked.
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

// Which tensor types a file may hold.
enum class AllowedTensorTypes {
  // Those that Dequantize reads.
  kReadable,
  // Any whose size is known (FindSizedTensorType): enough to look into a file.
  kSized,
};

// Views the bytes it was parsed from.
struct GgufHeader {
  uint32_t version = 0;
  // Of the tensors within the file, in bytes: a power of two, at least 8.
  uint32_t alignment = 32;
  // Metadata keys, in the order of the file.
  std::vector<std::string_view> keys;
  std::map<std::string_view, GgufEntry> entries;
  // In the order of the file. Each lies whole within the file, aligned, and overlaps no other.
  std::vector<TensorView> tensors;
};

// Parses one whole file. Nothing is read past the end of `file` whatever it holds, and no more is
// allocated than a fixed multiple of its size. Fails with
//   GGUF_TRUNCATED    kInvalidArgument   something reaches past the end of the file
//   GGUF_MALFORMED    kInvalidArgument   the file breaks a rule of the format
//   GGUF_UNSUPPORTED  kUnimplemented     a version, byte order or type that is not read here
// and a message that says what is wrong, where, and what to do.
absl::StatusOr<GgufHeader> ParseGgufHeader(std::span<const std::byte> file,
                                           AllowedTensorTypes allowed_types);

// `text` in quotes, fit for a message: what is not printable ASCII is escaped, what is long is cut.
std::string QuoteForMessage(std::string_view text);

}  // namespace orcd

#endif  // ORCD_RUNTIME_GGUF_GGUF_HEADER_H_
