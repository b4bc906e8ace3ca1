// A GGUF model (versions 2 and 3, little-endian, one file or split): its metadata and views of its
// tensors. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#ifndef ORCD_RUNTIME_GGUF_GGUF_READER_H_
#define ORCD_RUNTIME_GGUF_GGUF_READER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/gguf/block_formats.h"
#include "runtime/gguf/mapped_file.h"

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

// One metadata value. Strings and arrays of strings view the mapped file. Arrays of numbers are
// widened to 64 bits (or double); `GgufArray::type` keeps the type the file has.
struct GgufArray;
using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string_view,
                               std::shared_ptr<const GgufArray>>;
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
std::string_view GgufTypeName(GgufType type);
struct GgufArray {
  GgufType type = GgufType::kU8;
  // Exactly one of these has elements, by type: unsigned and bool; signed; floats; strings. Arrays
  // of arrays are refused.
  std::vector<uint64_t> unsigned_values;
  std::vector<int64_t> signed_values;
  std::vector<double> float_values;
  std::vector<std::string_view> strings;
  size_t size() const;
};
struct GgufEntry {
  GgufType type = GgufType::kU8;
  GgufValue value;
};

// Owns the mapped files. Everything it hands out views them and lives as long as it does. Immutable
// after Open; any thread may read.
class GgufReader {
 public:
  // Opens `path`; where its metadata names a split, also the other files beside it. Every length,
  // count, type, offset and overlap is checked here, with kInvalidArgument and a message that says
  // what is wrong where; nothing is read past the end of a file whatever it holds. A file without
  // tensors (a vocabulary) is fine.
  static absl::StatusOr<std::unique_ptr<GgufReader>> Open(const std::string& path);

  uint32_t version() const { return version_; }
  // In the order of the file.
  const std::vector<std::string_view>& keys() const { return keys_; }
  // Null where the key is absent.
  const GgufEntry* Find(std::string_view key) const;

  // Typed access. kNotFound where the key is absent, kInvalidArgument (with the type found and the
  // type wanted) where it has another type. Any unsigned or non-negative signed integer that fits
  // serves as U32.
  absl::StatusOr<uint32_t> GetU32(std::string_view key) const;
  absl::StatusOr<float> GetF32(std::string_view key) const;
  absl::StatusOr<bool> GetBool(std::string_view key) const;
  absl::StatusOr<std::string_view> GetString(std::string_view key) const;
  absl::StatusOr<std::span<const std::string_view>> GetStrings(std::string_view key) const;
  // An array of any integer type whose values fit.
  absl::StatusOr<std::vector<int32_t>> GetI32s(std::string_view key) const;

  // In the order of the file (of the files, where split).
  const std::vector<TensorView>& tensors() const { return tensors_; }
  // Null where there is none of this name.
  const TensorView* FindTensor(std::string_view name) const;

  // One, or all files of a split model in order.
  const std::vector<MappedFile>& files() const { return files_; }
  uint64_t total_bytes() const;
  // The first file that is no longer what it was; see MappedFile::CheckIntact.
  absl::Status CheckIntact() const;

 private:
  GgufReader() = default;

  uint32_t version_ = 0;
  std::vector<MappedFile> files_;
  std::vector<std::string_view> keys_;
  std::map<std::string_view, GgufEntry> entries_;
  std::vector<TensorView> tensors_;
  std::map<std::string_view, size_t> tensor_index_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_GGUF_GGUF_READER_H_
