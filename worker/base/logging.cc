#include "worker/base/logging.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "absl/time/clock.h"
#include "runtime/base/utf8.h"
#include "spdlog/spdlog.h"
#include "worker/base/stderr_sink.h"

namespace orcd {
namespace {

constexpr char kTimeFormat[] = "%Y-%m-%dT%H:%M:%E3SZ";

std::string_view LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "error";
}

spdlog::level::level_enum SpdlogLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

nlohmann::ordered_json ToJson(const LogField& field) {
  return std::visit([](const auto& v) { return nlohmann::ordered_json(v); }, field.value);
}

std::string Dump(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

bool IsPlain(std::string_view text) {
  if (text.empty()) return false;
  for (unsigned char c : text) {
    if (c <= ' ' || c >= 0x7f || c == '"' || c == '=' || c == '\\') return false;
  }
  return true;
}

// Quotes the value like JSON if it contains anything that could be mistaken for the line's own
// syntax.
std::string TextValue(const LogField& field) {
  if (const auto* text = std::get_if<std::string_view>(&field.value)) {
    if (IsPlain(*text)) return std::string(*text);
  }
  return Dump(ToJson(field));
}

// The worker's own messages are plain text; messages of libraries may hold line breaks.
std::string OneLine(std::string_view message) {
  for (unsigned char c : message) {
    if (c < ' ' || c == 0x7f) return Dump(nlohmann::ordered_json(message));
  }
  return ReplaceInvalidUtf8(message);
}

// Libraries call plain functions, which find our logger as spdlog's default logger.
template <LogFormat kFormat>
void LogForeign(LogLevel level, std::string_view source, std::string_view message) {
  auto* logger = spdlog::default_logger_raw();
  if (logger == nullptr || !logger->should_log(SpdlogLevel(level))) return;
  logger->log(SpdlogLevel(level),
              FormatLogLine(kFormat, absl::Now(), level, message, {{"source", source}}));
}

template <LogFormat kFormat>
void LogGrpc(gpr_log_func_args* args) {
  const LogLevel level = args->severity == GPR_LOG_SEVERITY_ERROR  ? LogLevel::kError
                         : args->severity == GPR_LOG_SEVERITY_INFO ? LogLevel::kInfo
                                                                   : LogLevel::kDebug;
  LogForeign<kFormat>(level, "grpc", args->message);
}

// protobuf's errors concern messages that do not parse. They are the fault of the sender, who gets
// an error, and not the worker's.
template <LogFormat kFormat>
void LogProtobuf(google::protobuf::LogLevel level, const char*, int, const std::string& message) {
  LogForeign<kFormat>(
      level == google::protobuf::LOGLEVEL_FATAL ? LogLevel::kError : LogLevel::kWarning, "protobuf",
      message);
}

}  // namespace

std::string FormatLogLine(LogFormat format, absl::Time time, LogLevel level,
                          std::string_view message, LogFields fields) {
  std::string stamp = absl::FormatTime(kTimeFormat, time, absl::UTCTimeZone());
  if (format == LogFormat::kJson) {
    nlohmann::ordered_json line = {{"time", stamp}, {"level", LevelName(level)}, {"msg", message}};
    for (const LogField& field : fields) line[std::string(field.key)] = ToJson(field);
    return Dump(line);
  }
  std::string line = stamp;
  line.append(" ").append(LevelName(level)).append(" ").append(OneLine(message));
  for (const LogField& field : fields) {
    line.append(" ").append(field.key).append("=").append(TextValue(field));
  }
  return line;
}

Logger::Logger(LogFormat format, LogLevel level)
    : format_(format),
      logger_(
          std::make_shared<spdlog::logger>("orcd", std::make_shared<StderrSink>(STDERR_FILENO))) {
  logger_->set_pattern("%v");
  logger_->set_level(SpdlogLevel(level));
}

void Logger::Debug(std::string_view message, LogFields fields) const {
  Log(LogLevel::kDebug, message, fields);
}
void Logger::Info(std::string_view message, LogFields fields) const {
  Log(LogLevel::kInfo, message, fields);
}
void Logger::Warning(std::string_view message, LogFields fields) const {
  Log(LogLevel::kWarning, message, fields);
}
void Logger::Error(std::string_view message, LogFields fields) const {
  Log(LogLevel::kError, message, fields);
}

void Logger::TakeLibraryLogs() const {
  spdlog::set_default_logger(logger_);
  const bool json = format_ == LogFormat::kJson;
  gpr_set_log_function(json ? &LogGrpc<LogFormat::kJson> : &LogGrpc<LogFormat::kText>);
  google::protobuf::SetLogHandler(json ? &LogProtobuf<LogFormat::kJson>
                                       : &LogProtobuf<LogFormat::kText>);
}

void Logger::Log(LogLevel level, std::string_view message, LogFields fields) const {
  if (!logger_->should_log(SpdlogLevel(level))) return;
  logger_->log(SpdlogLevel(level), FormatLogLine(format_, absl::Now(), level, message, fields));
}

}  // namespace orcd
