// A GGUF model (versions 2 and 3, little-endian, one file or split): its metadata and views of its
// tensors. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#ifndef ORCD_RUNTIME_GGUF_GGUF_READER_H_
#define ORCD_RUNTIME_GGUF_GGUF_READER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/gguf/block_formats.h"
#include "runtime/gguf/gguf_header.h"
#include "runtime/gguf/gguf_value.h"
#include "runtime/gguf/mapped_file.h"

namespace orcd {

// Owns the mapped files. Everything it hands out views them and lives as long as it does. Immutable
// after Open; any thread may read.
class GgufReader {
 public:
  // Opens `path`; where its metadata names a split, also the other files beside it. Every length,
  // count, type, offset and overlap is checked here; nothing is read past the end of a file
  // whatever it holds. A file without tensors (a vocabulary) is fine. Errors, each with a message
  // that says what is wrong where, are those of MappedFile::Open and ParseGgufHeader, kNotFound for
  // a part that is missing, kInvalidArgument (GGUF_MALFORMED) for parts that do not belong
  // together, kDataLoss (FILE_CHANGED) where a file changed meanwhile.
  static absl::StatusOr<std::unique_ptr<GgufReader>> Open(
      const std::string& path, AllowedTensorTypes allowed_types = AllowedTensorTypes::kReadable);

  uint32_t version() const { return version_; }
  // In the order of the file.
  const std::vector<std::string_view>& keys() const { return keys_; }
  // Null where the key is absent.
  const GgufEntry* Find(std::string_view key) const;

  // Typed access. kNotFound (GGUF_KEY_MISSING) where the key is absent, kInvalidArgument
  // (GGUF_KEY_TYPE, with the type found and the type wanted) where it has another type,
  // kInvalidArgument (GGUF_KEY_RANGE) where the value does not fit. Any integer that fits serves as
  // U32, f64 as well as f32 as F32.
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
  // The files' modification times, file by file, where CheckIntact fails for nothing but these.
  std::optional<std::vector<int64_t>> TouchedAt() const;
  // Takes those for the files' from now on; see MappedFile::AcceptTouch.
  void AcceptTouch(const std::vector<int64_t>& mtimes_ns) const;

 private:
  GgufReader() = default;
  absl::Status OpenParts(const std::string& path, AllowedTensorTypes allowed_types);
  absl::Status IndexTensors();

  uint32_t version_ = 0;
  std::vector<MappedFile> files_;
  std::vector<std::string_view> keys_;
  std::map<std::string_view, GgufEntry> entries_;
  std::vector<TensorView> tensors_;
  std::map<std::string_view, size_t> tensor_index_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_GGUF_GGUF_READER_H_
