// A read-only mapping of a file.
#ifndef ORCD_RUNTIME_GGUF_MAPPED_FILE_H_
#define ORCD_RUNTIME_GGUF_MAPPED_FILE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/gguf/sigbus_watch.h"

namespace orcd {

// Identifies the file at a path and the time of its last write.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size = 0;
  // Time of the last write, in nanoseconds since 1970.
  int64_t mtime_ns = 0;

  bool operator==(const FileIdentity&) const = default;
};

// Identifies the file that `path` names now, following links; nullopt if it cannot be examined.
std::optional<FileIdentity> IdentifyFile(const std::string& path);

// Owns a mapping of a regular file. Move-only. Reads are safe from any thread.
//
// If a file is cut short while it is mapped, a read of a lost page would kill the process with
// SIGBUS. Instead, zeros are read from that page on, the mapping is marked (SigbusWatch), and
// CheckIntact then fails. Code that reads weights must call CheckIntact before it trusts them.
class MappedFile {
 public:
  // Maps the file. Errors: kNotFound (FILE_NOT_FOUND), kPermissionDenied (FILE_UNREADABLE),
  // kInvalidArgument if `path` is not a regular file (FILE_NOT_REGULAR) or is empty (FILE_EMPTY),
  // kResourceExhausted (FILE_LIMIT) if the process has no address space, descriptor or watch left;
  // else those of FileError.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

  // Identity of the mapped file, whatever its path names by now.
  FileIdentity identity() const;

  // kDataLoss (FILE_CHANGED) if the file lost pages or its size or modification time changed since
  // it was opened; the error of FileError, such as kDataLoss (FILE_READ_FAILED), if it lost pages
  // because it cannot be read. Removing or renaming the file does no harm.
  absl::Status CheckIntact() const;

  // The new modification time, if nothing else has changed: the bytes may still be the same.
  std::optional<int64_t> TouchedAt() const;
  // Accepts `mtime_ns` as the file's modification time; the caller knows that the bytes are
  // unchanged.
  void AcceptTouch(int64_t mtime_ns) const;

 private:
  MappedFile() = default;
  void Close();

  std::string path_;
  std::span<const std::byte> bytes_;
  int fd_ = -1;
  FileIdentity opened_;
  mutable std::atomic<int64_t> mtime_ns_ = 0;
  std::optional<SigbusWatch> watch_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_GGUF_MAPPED_FILE_H_
