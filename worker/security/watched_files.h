// Small files that a running worker reads again when they change.
#ifndef ORCD_WORKER_SECURITY_WATCHED_FILES_H_
#define ORCD_WORKER_SECURITY_WATCHED_FILES_H_

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/base/logging.h"

namespace orcd {

// Files that are used together, such as a certificate and its key.
struct FileSet {
  std::vector<std::string> paths;
  // For errors about a file that cannot be read: the reason, and the end of the message, which says
  // what to change.
  std::string reason;
  std::string advice;
};

// Owns a thread that reads files again and passes changed ones on. Any thread may call.
//
// A change counts once two consecutive looks have read the same content: a file that is being
// written is not taken half-written, nor a certificate without the key that follows a moment later.
// Unusable content only causes a log line, once for each reason, and another once the files can be
// used again. A set whose first reading met something other than a regular file, such as a pipe, is
// read once.
class FileWatcher {
 public:
  // Maximum size of a file, in bytes.
  static constexpr size_t kMaxBytes = size_t{4} << 20;

  // `log` must outlive the watcher. `interval` is the time between two looks.
  explicit FileWatcher(const Logger& log, absl::Duration interval = absl::Milliseconds(500));
  ~FileWatcher();

  FileWatcher(const FileWatcher&) = delete;
  FileWatcher& operator=(const FileWatcher&) = delete;

  // Returns an error naming file and reason if the contents cannot be used. No content is empty.
  using Take = std::function<absl::Status(const std::vector<std::string>& contents)>;
  // Returns a warning about files in use, such as that a certificate has expired; empty: none.
  using Warn = std::function<std::string()>;

  // Reads `files` and calls `take` with their contents, in the order of `paths`: once before it
  // returns, and then, from the watcher's thread, after each change. `warn`, which may be null, is
  // called at each look, and its text is logged when it changes. Both must be callable until the
  // watcher is destroyed; neither may call the watcher. Fails with kInvalidArgument and the set's
  // reason if a file cannot be read, or with `take`'s error; then the set is not watched.
  absl::Status Watch(FileSet files, Take take, Warn warn = nullptr);

  // Looks at all files now, as the thread does once an interval; for tests.
  void Look();

 private:
  using Digest = std::array<uint8_t, 32>;
  struct Watched {
    FileSet files;
    Take take;
    Warn warn;
    // Digest of the contents that were taken last.
    Digest taken = {};
    // Digest of the previous look; absent if a file could not be read.
    std::optional<Digest> seen;
    // Error of the previous look; OK if the files could be read.
    absl::Status read_error;
    // Digest of the contents that caused logged_error; absent if they could not be read.
    std::optional<Digest> refused;
    // The last error that was logged; empty while the files can be used.
    std::string logged_error;
    std::string logged_warning;
  };

  void Run();
  void Look(Watched& watched);
  void Refuse(Watched& watched, const absl::Status& error);
  void UpdateWarning(Watched& watched);

  const Logger& log_;
  const absl::Duration interval_;

  std::mutex mutex_;
  std::condition_variable stop_;
  // Guarded by mutex_.
  bool stopping_ = false;
  std::vector<Watched> watched_;

  std::thread thread_;
};

// The last usable contents of watched files. A handle: copies share the value, and it may be
// destroyed before or after the watcher. Any thread may call.
template <typename T>
class LastGood {
 public:
  using Parse =
      std::function<absl::StatusOr<std::shared_ptr<const T>>(const std::vector<std::string>&)>;
  using WarnOf = std::function<std::string(const T&)>;

  // Same as FileWatcher::Watch; `parse` converts the files' contents.
  static absl::StatusOr<LastGood> Watch(FileWatcher& watcher, FileSet files, Parse parse,
                                        WarnOf warn_of = nullptr) {
    LastGood good;
    FileWatcher::Warn warn = nullptr;
    if (warn_of != nullptr) {
      warn = [state = good.state_, warn_of = std::move(warn_of)] { return warn_of(*state->Get()); };
    }
    absl::Status status = watcher.Watch(
        std::move(files),
        [state = good.state_,
         parse = std::move(parse)](const std::vector<std::string>& contents) -> absl::Status {
          absl::StatusOr<std::shared_ptr<const T>> value = parse(contents);
          if (!value.ok()) return value.status();
          state->Set(*std::move(value));
          return absl::OkStatus();
        },
        std::move(warn));
    if (!status.ok()) return status;
    return good;
  }

  // Never null. The same object until the files change.
  std::shared_ptr<const T> Get() const { return state_->Get(); }

 private:
  class State {
   public:
    std::shared_ptr<const T> Get() const {
      std::lock_guard lock(mutex_);
      return value_;
    }
    void Set(std::shared_ptr<const T> value) {
      std::lock_guard lock(mutex_);
      value_.swap(value);
    }

   private:
    mutable std::mutex mutex_;
    std::shared_ptr<const T> value_;
  };

  LastGood() : state_(std::make_shared<State>()) {}

  std::shared_ptr<State> state_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_SECURITY_WATCHED_FILES_H_
