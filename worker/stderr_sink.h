// Where log lines go, without ever waiting for whoever reads them.
#ifndef ORCD_WORKER_STDERR_SINK_H_
#define ORCD_WORKER_STDERR_SINK_H_

#include <cstdint>
#include <mutex>
#include <string_view>

#include "spdlog/sinks/base_sink.h"

namespace orcd {

// Writes each line to a descriptor that it does not own. A pipe or terminal that nobody reads must
// not hold up the threads that log, the engine's and the signal listener's among them: what cannot
// be written within a moment is dropped, and once lines can be written again, one says how many
// are missing. Any thread.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit StderrSink(int fd) : fd_(fd) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}

 private:
  // Whether all of it was written. A line that is cut off is ended before the next one begins.
  bool Write(std::string_view text);
  // Whether a little can be written without waiting for longer than `patience_ms`.
  bool AwaitWritable(int patience_ms) const;

  const int fd_;
  uint64_t dropped_ = 0;
  bool cut_off_ = false;
};

}  // namespace orcd

#endif  // ORCD_WORKER_STDERR_SINK_H_
