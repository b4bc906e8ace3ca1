#include "tools/orcdctl/error_text.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tools/orcdctl/console.h"
#include "tools/orcdctl/exit_codes.h"
#include "tools/orcdctl/human.h"

namespace orcd::ctl {
namespace {

void AppendLine(std::string& text, std::string_view label, std::string_view value) {
  absl::StrAppend(&text, "  ", std::string(label), ": ", AsOneLine(value), "\n");
}

// Omits the description of a detail if it repeats the status message.
std::string Subject(const std::string& subject, const std::string& description,
                    const std::string& message) {
  if (description.empty() || description == message) return subject;
  return subject.empty() ? description : absl::StrCat(subject, ": ", description);
}

void AppendDetail(std::string& text, const google::protobuf::Any& detail,
                  const std::string& message) {
  if (google::rpc::ErrorInfo info; detail.UnpackTo(&info)) {
    AppendLine(text, "reason", info.reason());
    return;
  }
  if (google::rpc::BadRequest bad; detail.UnpackTo(&bad)) {
    for (const auto& violation : bad.field_violations()) {
      const std::string field = Subject(violation.field(), violation.description(), message);
      if (!field.empty()) AppendLine(text, "field", field);
    }
    return;
  }
  if (google::rpc::QuotaFailure failure; detail.UnpackTo(&failure)) {
    for (const auto& violation : failure.violations()) {
      const std::string limit = Subject(violation.subject(), violation.description(), message);
      if (!limit.empty()) AppendLine(text, "limit", limit);
    }
    return;
  }
  if (google::rpc::PreconditionFailure failure; detail.UnpackTo(&failure)) {
    for (const auto& violation : failure.violations()) {
      const std::string what = Subject(violation.subject(), violation.description(), message);
      if (!what.empty()) AppendLine(text, "precondition", what);
    }
    return;
  }
  if (google::rpc::ResourceInfo resource; detail.UnpackTo(&resource)) {
    if (!resource.resource_name().empty()) {
      AppendLine(text, resource.resource_type().empty() ? "resource" : resource.resource_type(),
                 resource.resource_name());
    }
    return;
  }
  if (google::rpc::RetryInfo retry; detail.UnpackTo(&retry)) {
    AppendLine(text, "hint",
               absl::StrCat("try again in ", HumanDuration(FromProto(retry.retry_delay()))));
  }
}

google::rpc::Status Details(const grpc::Status& status) {
  google::rpc::Status details;
  // Without valid details, the code and the message are enough.
  if (!details.ParseFromString(status.error_details())) details.Clear();
  return details;
}

}  // namespace

std::string DescribeError(const grpc::Status& status, int exit_code, std::string_view address) {
  const std::string code =
      absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code()));
  const std::string message = status.error_message();
  std::string text = absl::StrCat(code, ": ", AsOneLine(message), "\n");
  const google::rpc::Status details = Details(status);
  for (const auto& detail : details.details()) AppendDetail(text, detail, message);
  if (exit_code == kExitUnreachable) {
    AppendLine(text, "hint",
               absl::StrCat("does a worker listen at ", std::string(address),
                            "? Set --address or ORCD_ADDRESS"));
  }
  return text;
}

int ExitCodeOf(const grpc::Status& status, bool connected) {
  const bool unanswered =
      status.error_code() == grpc::StatusCode::UNAVAILABLE ||
      (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED && !connected);
  return unanswered && Details(status).details().empty() ? kExitUnreachable : kExitFailed;
}

}  // namespace orcd::ctl
