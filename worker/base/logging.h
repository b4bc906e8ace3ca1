// Structured logs on stderr: one line an event, as text for people or as JSON.
#ifndef ORCD_WORKER_BASE_LOGGING_H_
#define ORCD_WORKER_BASE_LOGGING_H_

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "absl/time/time.h"
#include "spdlog/logger.h"

namespace orcd {

enum class LogFormat { kText, kJson };
enum class LogLevel { kDebug, kInfo, kWarning, kError };

// One key and value of an event. Lives only for the call that logs it.
struct LogField {
  template <std::integral T>
  LogField(std::string_view k, T v) : key(k) {
    if constexpr (std::same_as<T, bool>) {
      value = v;
    } else {
      value = static_cast<int64_t>(v);
    }
  }
  LogField(std::string_view k, double v) : key(k), value(v) {}
  LogField(std::string_view k, std::string_view v) : key(k), value(v) {}
  LogField(std::string_view k, const std::string& v) : key(k), value(std::string_view(v)) {}
  LogField(std::string_view k, const char* v) : key(k), value(std::string_view(v)) {}

  std::string_view key;
  std::variant<int64_t, double, bool, std::string_view> value;
};
using LogFields = std::initializer_list<LogField>;

// Formats one line without its newline. JSON has `time`, `level`, `msg`, then the fields. Control
// characters are escaped, so that an event is always one line, and bytes that are not UTF-8 become
// U+FFFD.
std::string FormatLogLine(LogFormat format, absl::Time time, LogLevel level,
                          std::string_view message, LogFields fields);

// Writes to stderr, and drops lines rather than wait. Any thread may call. Callers must never pass
// prompts, generated text or tokens.
class Logger {
 public:
  Logger(LogFormat format, LogLevel level);

  void Debug(std::string_view message, LogFields fields = {}) const;
  void Info(std::string_view message, LogFields fields = {}) const;
  void Warning(std::string_view message, LogFields fields = {}) const;
  void Error(std::string_view message, LogFields fields = {}) const;

  // Redirects the output of gRPC and protobuf to this log, for the rest of the process.
  void TakeLibraryLogs() const;

 private:
  void Log(LogLevel level, std::string_view message, LogFields fields) const;

  const LogFormat format_;
  const std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_BASE_LOGGING_H_
