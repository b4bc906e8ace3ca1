// A file's bytes, mapped read-only.
#ifndef ORCD_RUNTIME_GGUF_MAPPED_FILE_H_
#define ORCD_RUNTIME_GGUF_MAPPED_FILE_H_

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orcd {

// Owns a mapping of a regular file. Move-only. Reads are safe from any thread.
//
// A file that is cut short while it is mapped would kill the process with SIGBUS at the next read
// of a lost page. A process-wide handler (installed with the first mapping) instead puts zeros
// where the page was and marks the mapping; CheckIntact says so afterwards. Whoever reads weights
// asks it before believing them.
class MappedFile {
 public:
  // kNotFound, kPermissionDenied, or kInvalidArgument for a directory or an empty file.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

  // kDataLoss where the file lost pages or changed its size or modification time since it was
  // opened.
  absl::Status CheckIntact() const;

 private:
  MappedFile() = default;

  std::string path_;
  std::span<const std::byte> bytes_;
  int fd_ = -1;
  int64_t opened_mtime_ns_ = 0;
  // The entry of the handler's table that watches this mapping.
  int watch_ = -1;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_GGUF_MAPPED_FILE_H_
