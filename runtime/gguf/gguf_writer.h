// Writes GGUF files (version 3, little-endian).
#ifndef ORCD_RUNTIME_GGUF_GGUF_WRITER_H_
#define ORCD_RUNTIME_GGUF_GGUF_WRITER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/gguf/block_formats.h"
#include "runtime/gguf/gguf_value.h"

namespace orcd {

class GgufFile;

// Collects metadata and tensor infos. CreateFile then writes them, and the GgufFile it returns
// takes the tensors' bytes in parts, so that no model needs to fit in memory. Keys and names are
// not checked for duplicates. One thread at a time.
class GgufWriter {
 public:
  // `alignment` of the tensors in the file is a power of two and at least 8. A value other than 32
  // is written as `general.alignment`.
  explicit GgufWriter(uint32_t alignment = 32);

  void SetU16(std::string_view key, uint16_t value);
  void SetU32(std::string_view key, uint32_t value);
  void SetI32(std::string_view key, int32_t value);
  void SetF32(std::string_view key, float value);
  void SetBool(std::string_view key, bool value);
  void SetString(std::string_view key, std::string_view value);
  void SetStrings(std::string_view key, std::span<const std::string> values);
  void SetI32s(std::string_view key, std::span<const int32_t> values);
  void SetF32s(std::string_view key, std::span<const float> values);
  // Sets any value, in the type that `entry` gives.
  void Set(std::string_view key, const GgufEntry& entry);

  // `ne` has one to four dimensions, ne[0] contiguous and a multiple of the type's block. Returns
  // the tensor's index.
  size_t AddTensor(std::string_view name, TensorType type, std::span<const uint64_t> ne);

  // Everything before the tensor data, padded to the alignment.
  std::string Header() const;
  // Size of the tensor data, including the padding after the last tensor.
  uint64_t data_bytes() const { return data_bytes_; }
  uint64_t tensor_bytes(size_t tensor) const { return tensors_[tensor].bytes; }

  // Starts the file. Errors name the path: kPermissionDenied, kNotFound (no such folder),
  // kResourceExhausted (no space), kInternal.
  absl::StatusOr<GgufFile> CreateFile(const std::string& path) const;

 private:
  struct Tensor {
    std::string name;
    TensorType type;
    std::array<uint64_t, 4> ne;
    uint32_t n_dims;
    uint64_t offset;  // from the start of the data
    uint64_t bytes;
  };

  void StartKey(std::string_view key, GgufType type);

  uint32_t alignment_;
  uint64_t n_keys_ = 0;
  std::string metadata_;
  std::vector<Tensor> tensors_;
  uint64_t data_bytes_ = 0;
};

// A file being written, under a temporary name beside `path` until Finish renames it. Owns the
// descriptor and the temporary file, which the destructor removes if Finish did not succeed.
// Move-only.
class GgufFile {
 public:
  GgufFile(GgufFile&& other) noexcept;
  GgufFile& operator=(GgufFile&&) = delete;
  ~GgufFile();

  // Writes `bytes` at `offset` of the tensor's data. Any thread; concurrent writes must be to
  // different ranges. Ranges never written hold zeros. kOutOfRange past the tensor's end,
  // kResourceExhausted if the disk is full.
  absl::Status Write(size_t tensor, uint64_t offset, std::span<const std::byte> bytes) const;

  // Renames the file to its final name. Nothing may be written afterwards.
  absl::Status Finish();

 private:
  friend class GgufWriter;
  struct Place {
    uint64_t offset;  // in the file
    uint64_t bytes;
  };
  GgufFile() = default;
  absl::Status WriteAt(uint64_t offset, std::span<const std::byte> bytes) const;

  std::string path_;
  std::string temporary_path_;
  int fd_ = -1;
  std::vector<Place> tensors_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_GGUF_GGUF_WRITER_H_
