#include "runtime/gguf/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/error.h"

namespace orcd {
namespace {

int64_t ModificationTimeNs(const struct stat& stat) {
  return int64_t{stat.st_mtim.tv_sec} * 1'000'000'000 + stat.st_mtim.tv_nsec;
}

absl::Status FileError(absl::StatusCode code, std::string_view reason, const std::string& path,
                       std::string_view what) {
  return MakeError(code, absl::StrFormat("%s: %s", path, what),
                   {.reason = std::string(reason), .subject = path});
}

absl::Status OpenError(const std::string& path, int error) {
  const std::string text = std::strerror(error);
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return FileError(absl::StatusCode::kNotFound, "FILE_NOT_FOUND", path,
                       "there is no such file; check the path");
    case EACCES:
    case EPERM:
      return FileError(absl::StatusCode::kPermissionDenied, "FILE_UNREADABLE", path,
                       "may not be read (" + text + "); give this user the right to read it");
    case EMFILE:
    case ENFILE:
      return FileError(absl::StatusCode::kResourceExhausted, "FILE_LIMIT", path,
                       "no file descriptor is left (" + text + "); raise the limit (ulimit -n)");
    default:
      return FileError(absl::StatusCode::kInvalidArgument, "FILE_UNREADABLE", path,
                       "cannot be opened: " + text);
  }
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  MappedFile file;
  file.path_ = path;
  // A pipe without a writer would else block here.
  file.fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd_ < 0) return OpenError(path, errno);
  struct stat stat = {};
  if (fstat(file.fd_, &stat) != 0) return OpenError(path, errno);
  if (!S_ISREG(stat.st_mode)) {
    return FileError(
        absl::StatusCode::kInvalidArgument, "FILE_NOT_REGULAR", path,
        S_ISDIR(stat.st_mode) ? "is a directory; name a file in it" : "is not a regular file");
  }
  if (stat.st_size == 0) {
    return FileError(absl::StatusCode::kInvalidArgument, "FILE_EMPTY", path,
                     "is empty; fetch it again");
  }
  file.opened_mtime_ns_ = ModificationTimeNs(stat);
  const auto size = static_cast<size_t>(stat.st_size);
  void* mapping = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd_, 0);
  if (mapping == MAP_FAILED) {
    return FileError(
        absl::StatusCode::kResourceExhausted, "FILE_LIMIT", path,
        absl::StrFormat("%d bytes cannot be mapped: %s; raise the limit on address space "
                        "(ulimit -v) or on mappings (vm.max_map_count)",
                        size, std::strerror(errno)));
  }
  file.bytes_ = {static_cast<const std::byte*>(mapping), size};
  file.watch_ = SigbusWatch::Create(file.bytes_);
  if (!file.watch_) {
    return FileError(absl::StatusCode::kResourceExhausted, "FILE_LIMIT", path,
                     absl::StrFormat("%d files are mapped already, and no more can be; use a "
                                     "model in fewer parts",
                                     SigbusWatch::kMaxWatches));
  }
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      bytes_(std::exchange(other.bytes_, {})),
      fd_(std::exchange(other.fd_, -1)),
      opened_mtime_ns_(other.opened_mtime_ns_),
      watch_(std::exchange(other.watch_, std::nullopt)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    Close();
    path_ = std::move(other.path_);
    bytes_ = std::exchange(other.bytes_, {});
    fd_ = std::exchange(other.fd_, -1);
    opened_mtime_ns_ = other.opened_mtime_ns_;
    watch_ = std::exchange(other.watch_, std::nullopt);
  }
  return *this;
}

MappedFile::~MappedFile() { Close(); }

void MappedFile::Close() {
  watch_.reset();
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  if (fd_ >= 0) close(fd_);
  bytes_ = {};
  fd_ = -1;
}

absl::Status MappedFile::CheckIntact() const {
  std::string what;
  struct stat stat = {};
  if (fd_ < 0 || fstat(fd_, &stat) != 0) {
    what = "can no longer be examined";
  } else if (static_cast<size_t>(stat.st_size) != bytes_.size()) {
    what = absl::StrFormat("had %d bytes when it was opened and has %d now", bytes_.size(),
                           stat.st_size);
  } else if (watch_->lost_pages()) {
    what = "could not be read in full (cut short for a while, or the disk failed)";
  } else if (ModificationTimeNs(stat) != opened_mtime_ns_) {
    what = "was written to after it was opened";
  } else {
    return absl::OkStatus();
  }
  return FileError(absl::StatusCode::kDataLoss, "FILE_CHANGED", path_,
                   what +
                       "; leave a model's file alone while it is in use (replace it by renaming "
                       "a new file over it) and load it again");
}

}  // namespace orcd
