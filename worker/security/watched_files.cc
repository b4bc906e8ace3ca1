#include "worker/security/watched_files.h"

#include <fcntl.h>
#include <openssl/sha.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/error.h"

namespace orcd {
namespace {

using Digest = std::array<uint8_t, 32>;

// A descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

absl::Status Unusable(const FileSet& files, const std::string& path, std::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat(path, ": ", std::string(what), "; ", files.advice),
                   {.reason = files.reason, .subject = path});
}

absl::Status CannotRead(const FileSet& files, const std::string& path, int error) {
  return Unusable(files, path, absl::StrCat("cannot be read: ", std::strerror(error)));
}

bool IsRegular(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

// With `again` only a regular file is read, so that no pipe without a writer holds up the thread.
absl::StatusOr<std::string> Read(const FileSet& files, const std::string& path, bool again) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | (again ? O_NONBLOCK : 0)));
  if (file.get() < 0) return CannotRead(files, path, errno);
  if (struct stat info; again && (fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode))) {
    return Unusable(files, path, "is no regular file any more");
  }
  std::string content;
  char buffer[16 << 10];
  for (;;) {
    const ssize_t size = read(file.get(), buffer, sizeof(buffer));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return CannotRead(files, path, errno);
    if (size == 0) break;
    content.append(buffer, static_cast<size_t>(size));
    if (content.size() > FileWatcher::kMaxBytes) {
      return Unusable(files, path,
                      absl::StrCat("has more than ", FileWatcher::kMaxBytes, " bytes"));
    }
  }
  if (content.empty()) return Unusable(files, path, "is empty");
  return content;
}

absl::StatusOr<std::vector<std::string>> ReadAll(const FileSet& files, bool again) {
  std::vector<std::string> contents;
  for (const std::string& path : files.paths) {
    ORCD_ASSIGN_OR_RETURN(std::string content, Read(files, path, again));
    contents.push_back(std::move(content));
  }
  return contents;
}

Digest DigestOf(const std::vector<std::string>& contents) {
  // The digest of the files' digests, so that the same bytes split differently between files have
  // another digest.
  std::string digests;
  Digest digest;
  for (const std::string& content : contents) {
    SHA256(reinterpret_cast<const uint8_t*>(content.data()), content.size(), digest.data());
    digests.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  }
  SHA256(reinterpret_cast<const uint8_t*>(digests.data()), digests.size(), digest.data());
  return digest;
}

}  // namespace

FileWatcher::FileWatcher(const Logger& log, absl::Duration interval)
    : log_(log), interval_(interval) {
  thread_ = std::thread([this] { Run(); });
}

FileWatcher::~FileWatcher() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  thread_.join();
}

absl::Status FileWatcher::Watch(FileSet files, Take take, Warn warn) {
  ORCD_ASSIGN_OR_RETURN(const std::vector<std::string> contents, ReadAll(files, /*again=*/false));
  ORCD_RETURN_IF_ERROR(take(contents));
  Watched watched;
  watched.files = std::move(files);
  watched.take = std::move(take);
  watched.warn = std::move(warn);
  watched.taken = DigestOf(contents);
  watched.seen = watched.taken;
  UpdateWarning(watched);
  for (const std::string& path : watched.files.paths) {
    if (!IsRegular(path)) return absl::OkStatus();
  }
  std::lock_guard lock(mutex_);
  watched_.push_back(std::move(watched));
  return absl::OkStatus();
}

void FileWatcher::Run() {
  std::unique_lock lock(mutex_);
  while (
      !stop_.wait_for(lock, absl::ToChronoMilliseconds(interval_), [this] { return stopping_; })) {
    for (Watched& watched : watched_) Look(watched);
  }
}

void FileWatcher::Look() {
  std::lock_guard lock(mutex_);
  for (Watched& watched : watched_) Look(watched);
}

void FileWatcher::Look(Watched& watched) {
  const absl::StatusOr<std::vector<std::string>> contents = ReadAll(watched.files, /*again=*/true);
  std::optional<Digest> digest;
  if (contents.ok()) digest = DigestOf(*contents);
  const bool settled = digest == watched.seen && contents.status() == watched.read_error;
  watched.seen = digest;
  watched.read_error = contents.status();
  if (settled) {
    if (!contents.ok()) {
      Refuse(watched, contents.status());
    } else if (*digest == watched.taken) {
      if (!watched.logged_error.empty()) {
        log_.Info("files are again what is in use",
                  {{"files", absl::StrJoin(watched.files.paths, ", ")}});
      }
      watched.logged_error.clear();
      watched.refused.reset();
    } else if (watched.refused != digest) {
      const absl::Status taken = watched.take(*contents);
      if (taken.ok()) {
        watched.taken = *digest;
        watched.logged_error.clear();
        watched.refused.reset();
        log_.Info("files read again", {{"files", absl::StrJoin(watched.files.paths, ", ")}});
      } else {
        Refuse(watched, taken);
        watched.refused = digest;
      }
    }
  }
  UpdateWarning(watched);
}

void FileWatcher::Refuse(Watched& watched, const absl::Status& error) {
  const std::string message(error.message());
  watched.refused.reset();
  if (watched.logged_error == message) return;
  watched.logged_error = message;
  log_.Warning("a changed file cannot be used; the last good content stays in use",
               {{"error", message}});
}

void FileWatcher::UpdateWarning(Watched& watched) {
  if (watched.warn == nullptr) return;
  std::string warning = watched.warn();
  if (warning == watched.logged_warning) return;
  watched.logged_warning = std::move(warning);
  if (watched.logged_warning.empty()) return;
  log_.Warning("a file in use has content that is not valid now",
               {{"error", watched.logged_warning}});
}

}  // namespace orcd
