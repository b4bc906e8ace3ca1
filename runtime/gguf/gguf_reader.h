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

// Owns the mapped files. Everything it returns views them and is valid as long as the reader.
// Immutable after Open; any thread may read.
class GgufReader {
 public:
  // Opens `path`; if its metadata names a split, also opens the other files beside it. Every
  // length, count, type, offset and overlap is checked here; nothing is read past the end of a
  // file, whatever it holds. A file without tensors (a vocabulary) is fine. Errors, each with a
  // message that says what is wrong and where, are those of MappedFile::Open and ParseGgufHeader,
  // kNotFound for a missing part, kInvalidArgument (GGUF_MALFORMED) for parts that do not belong
  // together, kDataLoss (FILE_CHANGED) if a file changed meanwhile.
  static absl::StatusOr<std::unique_ptr<GgufReader>> Open(
      const std::string& path, AllowedTensorTypes allowed_types = AllowedTensorTypes::kReadable);

  uint32_t version() const { return version_; }
  // In the order of the file.
  const std::vector<std::string_view>& keys() const { return keys_; }
  // Null if the key is absent.
  const GgufEntry* Find(std::string_view key) const;

  // Typed access. kNotFound (GGUF_KEY_MISSING) if the key is absent, kInvalidArgument
  // (GGUF_KEY_TYPE, with the type found and the type wanted) if it has another type,
  // kInvalidArgument (GGUF_KEY_RANGE) if the value does not fit. Any integer that fits is accepted
  // as U32; f64 is accepted as F32, like f32.
  absl::StatusOr<uint32_t> GetU32(std::string_view key) const;
  absl::StatusOr<float> GetF32(std::string_view key) const;
  absl::StatusOr<bool> GetBool(std::string_view key) const;
  absl::StatusOr<std::string_view> GetString(std::string_view key) const;
  absl::StatusOr<std::span<const std::string_view>> GetStrings(std::string_view key) const;
  // Accepts an array of any integer type whose values fit.
  absl::StatusOr<std::vector<int32_t>> GetI32s(std::string_view key) const;
  // Accepts an array of f32 or f64.
  absl::StatusOr<std::vector<float>> GetF32s(std::string_view key) const;

  // In the order of the file, or of the files of a split model.
  const std::vector<TensorView>& tensors() const { return tensors_; }
  // Null if there is no tensor of this name.
  const TensorView* FindTensor(std::string_view name) const;

  // The one file, or all files of a split model in order.
  const std::vector<MappedFile>& files() const { return files_; }
  uint64_t total_bytes() const;
  // The error for the first file that has changed since it was opened; see MappedFile::CheckIntact.
  absl::Status CheckIntact() const;
  // The modification times of all files, if CheckIntact fails only because of these times.
  std::optional<std::vector<int64_t>> TouchedAt() const;
  // Accepts `mtimes_ns` as the files' modification times from now on; see MappedFile::AcceptTouch.
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
