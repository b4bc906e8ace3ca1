#include "worker/base/stderr_sink.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"

namespace orcd {
namespace {

// Time that a reader that was keeping up may take to continue.
constexpr int kPatienceMs = 50;

}  // namespace

void StderrSink::sink_it_(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t line;
  formatter_->format(message, line);
  if (dropped_ > 0) {
    const std::string missing = absl::StrCat(cut_off_ ? "\n" : "", dropped_,
                                             " log lines are missing here: nobody read them\n");
    if (!Write(missing)) {
      ++dropped_;
      return;
    }
    dropped_ = 0;
  }
  if (!Write({line.data(), line.size()})) dropped_ = 1;
}

bool StderrSink::Write(std::string_view text) {
  size_t written = 0;
  while (written < text.size()) {
    // A pipe that is ready takes this much at once.
    const size_t part = std::min<size_t>(text.size() - written, PIPE_BUF);
    if (!AwaitWritable(dropped_ > 0 ? 0 : kPatienceMs)) break;
    const ssize_t count = write(fd_, text.data() + written, part);
    if (count < 0 && errno != EINTR) break;
    if (count > 0) written += count;
  }
  if (written > 0) cut_off_ = written < text.size();
  return written == text.size();
}

bool StderrSink::AwaitWritable(int patience_ms) const {
  pollfd ready = {.fd = fd_, .events = POLLOUT, .revents = 0};
  return poll(&ready, 1, patience_ms) == 1 && (ready.revents & POLLOUT) != 0;
}

}  // namespace orcd
