#include "runtime/base/error.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/utf8.h"

namespace orcd {
namespace {

constexpr std::string_view kReasonUrl = "orcd/reason";
constexpr std::string_view kFieldUrl = "orcd/field";
constexpr std::string_view kSubjectUrl = "orcd/subject";
constexpr std::string_view kRetryAfterMsUrl = "orcd/retry_after_ms";

absl::string_view Abseil(std::string_view s) { return {s.data(), s.size()}; }

void Attach(absl::Status& status, std::string_view url, std::string_view value) {
  if (!value.empty()) status.SetPayload(Abseil(url), absl::Cord(ReplaceInvalidUtf8(value)));
}

std::string Payload(const absl::Status& status, std::string_view url) {
  auto cord = status.GetPayload(Abseil(url));
  return cord ? std::string(*cord) : std::string();
}

}  // namespace

absl::Status MakeError(absl::StatusCode code, std::string_view message,
                       const ErrorDetails& details) {
  absl::Status status(code, ReplaceInvalidUtf8(message));
  Attach(status, kReasonUrl, details.reason);
  Attach(status, kFieldUrl, details.field);
  Attach(status, kSubjectUrl, details.subject);
  if (details.retry_after) {
    Attach(status, kRetryAfterMsUrl, absl::StrCat(absl::ToInt64Milliseconds(*details.retry_after)));
  }
  return status;
}

absl::Status InvalidField(std::string_view field, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat(Abseil(field), ": ", Abseil(message)),
                   {.reason = "INVALID_FIELD", .field = std::string(field)});
}

ErrorDetails GetErrorDetails(const absl::Status& status) {
  ErrorDetails details;
  details.reason = Payload(status, kReasonUrl);
  details.field = Payload(status, kFieldUrl);
  details.subject = Payload(status, kSubjectUrl);
  int64_t ms = 0;
  if (absl::SimpleAtoi(Payload(status, kRetryAfterMsUrl), &ms)) {
    details.retry_after = absl::Milliseconds(ms);
  }
  return details;
}

absl::Status Annotate(const absl::Status& status, std::string_view prefix) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(),
                         absl::StrCat(ReplaceInvalidUtf8(prefix), ": ", status.message()));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& value) { annotated.SetPayload(url, value); });
  return annotated;
}

}  // namespace orcd
