// A file's bytes, mapped read-only.
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

// Which file stands at a path, and when it was last written to.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size = 0;
  // Of the last write, in nanoseconds since 1970.
  int64_t mtime_ns = 0;

  bool operator==(const FileIdentity&) const = default;
};

// Of the file that `path` names now, with links followed; nothing where it cannot be examined.
std::optional<FileIdentity> IdentifyFile(const std::string& path);

// Owns a mapping of a regular file. Move-only. Reads are safe from any thread.
//
// A file that is cut short while it is mapped would kill the process with SIGBUS at the next read
// of a lost page. Instead zeros are read from there on and the mapping is marked (SigbusWatch);
// CheckIntact says so afterwards. Whoever reads weights asks it before believing them.
class MappedFile {
 public:
  // kNotFound (FILE_NOT_FOUND), kPermissionDenied (FILE_UNREADABLE), kInvalidArgument for what is
  // not a regular file (FILE_NOT_REGULAR) or holds nothing (FILE_EMPTY), kResourceExhausted
  // (FILE_LIMIT) where the process has no address space, descriptor or watch left; else as
  // FileError has it.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

  // Of the file that is mapped, whatever its path names by now.
  FileIdentity identity() const;

  // kDataLoss (FILE_CHANGED) where the file lost pages or changed its size or modification time
  // since it was opened; the error of FileError, such as kDataLoss (FILE_READ_FAILED), where it
  // lost pages because it cannot be read. Removing or renaming the file does no harm.
  absl::Status CheckIntact() const;

  // The new modification time, where that alone has changed: the bytes may still be the same.
  std::optional<int64_t> TouchedAt() const;
  // Takes `mtime_ns` for the file's from now on: its bytes are known to be what they were.
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
