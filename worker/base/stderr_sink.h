// A sink for log lines that never waits for their reader.
#ifndef ORCD_WORKER_BASE_STDERR_SINK_H_
#define ORCD_WORKER_BASE_STDERR_SINK_H_

#include <cstdint>
#include <mutex>
#include <string_view>

#include "spdlog/sinks/base_sink.h"

namespace orcd {

// Writes each line to a descriptor that it does not own. A pipe or terminal that nobody reads must
// not hold up the threads that log, among them the engine thread and the signal listener's. So a
// line that cannot be written within a moment is dropped, and once lines can be written again, one
// of them says how many are missing. Any thread may call.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit StderrSink(int fd) : fd_(fd) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}

 private:
  // Returns true if all of `text` was written. A line that is cut off is ended before the next one
  // begins.
  bool Write(std::string_view text);
  // Returns true if a little can be written without waiting for longer than `patience_ms`.
  bool AwaitWritable(int patience_ms) const;

  const int fd_;
  uint64_t dropped_ = 0;
  bool cut_off_ = false;
};

}  // namespace orcd

#endif  // ORCD_WORKER_BASE_STDERR_SINK_H_
