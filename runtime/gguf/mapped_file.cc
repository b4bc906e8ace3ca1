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
#include "runtime/base/error.h"
#include "runtime/gguf/file_error.h"

namespace orcd {
namespace {

int64_t ModificationTimeNs(const struct stat& stat) {
  return int64_t{stat.st_mtim.tv_sec} * 1'000'000'000 + stat.st_mtim.tv_nsec;
}

FileIdentity IdentityOf(const struct stat& stat) {
  return {.device = stat.st_dev,
          .inode = stat.st_ino,
          .size = static_cast<uint64_t>(stat.st_size),
          .mtime_ns = ModificationTimeNs(stat)};
}

}  // namespace

std::optional<FileIdentity> IdentifyFile(const std::string& path) {
  struct stat stat = {};
  if (::stat(path.c_str(), &stat) != 0) return std::nullopt;
  return IdentityOf(stat);
}

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  MappedFile file;
  file.path_ = path;
  // Without O_NONBLOCK, opening a pipe without a writer would block here.
  file.fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd_ < 0) return FileError(path, errno);
  struct stat stat = {};
  if (fstat(file.fd_, &stat) != 0) return FileError(path, errno);
  if (!S_ISREG(stat.st_mode)) {
    return MakeFileError(
        absl::StatusCode::kInvalidArgument, "FILE_NOT_REGULAR", path,
        S_ISDIR(stat.st_mode) ? "is a directory; name a file in it" : "is not a regular file");
  }
  if (stat.st_size == 0) {
    return MakeFileError(absl::StatusCode::kInvalidArgument, "FILE_EMPTY", path,
                         "is empty; fetch it again");
  }
  file.opened_ = IdentityOf(stat);
  file.mtime_ns_ = file.opened_.mtime_ns;
  const auto size = static_cast<size_t>(stat.st_size);
  void* mapping = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd_, 0);
  if (mapping == MAP_FAILED) {
    if (errno != ENOMEM && errno != EAGAIN && errno != EOVERFLOW) return FileError(path, errno);
    return MakeFileError(
        absl::StatusCode::kResourceExhausted, "FILE_LIMIT", path,
        absl::StrFormat("%d bytes cannot be mapped: %s; raise the limit on address space "
                        "(ulimit -v) or on mappings (vm.max_map_count)",
                        size, std::strerror(errno)));
  }
  file.bytes_ = {static_cast<const std::byte*>(mapping), size};
  file.watch_ = SigbusWatch::Create(file.bytes_);
  if (!file.watch_) {
    return MakeFileError(absl::StatusCode::kResourceExhausted, "FILE_LIMIT", path,
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
      opened_(other.opened_),
      mtime_ns_(other.mtime_ns_.load()),
      watch_(std::exchange(other.watch_, std::nullopt)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    Close();
    path_ = std::move(other.path_);
    bytes_ = std::exchange(other.bytes_, {});
    fd_ = std::exchange(other.fd_, -1);
    opened_ = other.opened_;
    mtime_ns_ = other.mtime_ns_.load();
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

FileIdentity MappedFile::identity() const {
  FileIdentity identity = opened_;
  identity.mtime_ns = mtime_ns_;
  return identity;
}

absl::Status MappedFile::CheckIntact() const {
  std::string what;
  struct stat stat = {};
  if (fd_ < 0) {
    what = "can no longer be examined";
  } else if (fstat(fd_, &stat) != 0) {
    return FileError(path_, errno);
  } else if (static_cast<size_t>(stat.st_size) != bytes_.size()) {
    what = absl::StrFormat("had %d bytes when it was opened and has %d now", bytes_.size(),
                           stat.st_size);
  } else if (const std::optional<size_t> lost = watch_->first_lost_byte()) {
    // A fault carries no error text; reading the same place with pread gives one.
    std::byte byte;
    if (pread(fd_, &byte, 1, static_cast<off_t>(*lost)) < 0) return FileError(path_, errno);
    what = "could not be read in full (cut short for a while, or the disk failed)";
  } else if (ModificationTimeNs(stat) != mtime_ns_) {
    what = "was written to after it was opened";
  } else {
    return absl::OkStatus();
  }
  return MakeFileError(absl::StatusCode::kDataLoss, "FILE_CHANGED", path_,
                       what +
                           "; leave a model's file alone while it is in use (replace it by "
                           "renaming a new file over it) and load it again");
}

std::optional<int64_t> MappedFile::TouchedAt() const {
  struct stat stat = {};
  if (fd_ < 0 || fstat(fd_, &stat) != 0 || watch_->lost_pages() ||
      static_cast<size_t>(stat.st_size) != bytes_.size() || ModificationTimeNs(stat) == mtime_ns_) {
    return std::nullopt;
  }
  return ModificationTimeNs(stat);
}

void MappedFile::AcceptTouch(int64_t mtime_ns) const { mtime_ns_ = mtime_ns; }

}  // namespace orcd
