// A file's bytes, mapped read-only.
#ifndef ORCD_RUNTIME_GGUF_MAPPED_FILE_H_
#define ORCD_RUNTIME_GGUF_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/gguf/sigbus_watch.h"

namespace orcd {

// Owns a mapping of a regular file. Move-only. Reads are safe from any thread.
//
// A file that is cut short while it is mapped would kill the process with SIGBUS at the next read
// of a lost page. Instead zeros are read from there on and the mapping is marked (SigbusWatch);
// CheckIntact says so afterwards. Whoever reads weights asks it before believing them.
class MappedFile {
 public:
  // kNotFound (FILE_NOT_FOUND), kPermissionDenied (FILE_UNREADABLE), kInvalidArgument for what is
  // not a regular file (FILE_NOT_REGULAR) or holds nothing (FILE_EMPTY), kResourceExhausted
  // (FILE_LIMIT) where the process has no address space, descriptor or watch left.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

  // kDataLoss (FILE_CHANGED) where the file lost pages or changed its size or modification time
  // since it was opened. Removing or renaming the file does no harm.
  absl::Status CheckIntact() const;

 private:
  MappedFile() = default;
  void Close();

  std::string path_;
  std::span<const std::byte> bytes_;
  int fd_ = -1;
  int64_t opened_mtime_ns_ = 0;
  std::optional<SigbusWatch> watch_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_GGUF_MAPPED_FILE_H_
