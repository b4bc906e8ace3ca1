#include "worker/base/status_details.h"

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "runtime/base/error.h"
#include "runtime/text/utf8_stream.h"
#include "worker/base/to_proto.h"

namespace orcd {
namespace {

// Clients refuse more than 8 KiB of trailers, and a message stands in them three times.
constexpr size_t kMaxTextBytes = 1024;

std::string WireText(std::string_view text) {
  Utf8Stream utf8;
  const bool cut = text.size() > kMaxTextBytes;
  std::string result = utf8.Append(text.substr(0, kMaxTextBytes));
  if (cut) return result + "…";
  return result + utf8.Finish();
}

}  // namespace

google::rpc::Status ToRpcStatus(const absl::Status& status) {
  const ErrorDetails details = GetErrorDetails(status);
  const std::string message = WireText(std::string(status.message()));
  const std::string subject = WireText(details.subject);

  google::rpc::Status rpc;
  rpc.set_code(static_cast<int>(status.code()));
  rpc.set_message(message);

  google::rpc::ErrorInfo info;
  info.set_domain("orcd");
  info.set_reason(details.reason.empty() ? absl::StatusCodeToString(status.code())
                                         : details.reason);
  const std::string reason = info.reason();
  if (!subject.empty()) (*info.mutable_metadata())["subject"] = subject;
  rpc.add_details()->PackFrom(info);

  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument: {
      google::rpc::BadRequest bad;
      auto* violation = bad.add_field_violations();
      violation->set_field(WireText(details.field));
      violation->set_description(message);
      rpc.add_details()->PackFrom(bad);
      break;
    }
    case absl::StatusCode::kNotFound: {
      google::rpc::ResourceInfo resource;
      resource.set_resource_type("model");
      resource.set_resource_name(subject);
      resource.set_description(message);
      rpc.add_details()->PackFrom(resource);
      break;
    }
    case absl::StatusCode::kFailedPrecondition: {
      google::rpc::PreconditionFailure failure;
      auto* violation = failure.add_violations();
      violation->set_type(reason);
      violation->set_subject(subject);
      violation->set_description(message);
      rpc.add_details()->PackFrom(failure);
      break;
    }
    case absl::StatusCode::kResourceExhausted: {
      google::rpc::QuotaFailure failure;
      auto* violation = failure.add_violations();
      violation->set_subject(subject);
      violation->set_description(message);
      rpc.add_details()->PackFrom(failure);
      break;
    }
    default:
      break;
  }
  if (details.retry_after) {
    google::rpc::RetryInfo retry;
    *retry.mutable_retry_delay() = ToProto(*details.retry_after);
    rpc.add_details()->PackFrom(retry);
  }
  return rpc;
}

grpc::Status ToGrpcStatus(const absl::Status& status, grpc::ServerContextBase* context) {
  if (status.ok()) return grpc::Status::OK;
  const google::rpc::Status rpc = ToRpcStatus(status);
  const auto retry_after = GetErrorDetails(status).retry_after;
  if (retry_after && context != nullptr) {
    context->AddTrailingMetadata("grpc-retry-pushback-ms",
                                 absl::StrCat(absl::ToInt64Milliseconds(*retry_after)));
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), rpc.message(),
                      rpc.SerializeAsString());
}

}  // namespace orcd
