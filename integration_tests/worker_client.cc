#include "integration_tests/worker_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "integration_tests/worker_process.h"

namespace orcd::testing {
namespace {

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

// Adds one message to the result, and notes the first violation of the protocol.
void Take(const v1::GenerateResponse& response, bool wants_logprobs, Generation& result) {
  const auto violate = [&](std::string what) {
    if (result.violation.empty()) result.violation = std::move(what);
  };
  if (result.finished) violate("a message after Finished");
  switch (response.event_case()) {
    case v1::GenerateResponse::kStarted:
      if (result.started) violate("a second Started");
      if (!result.deltas.empty()) violate("a Started after a Delta");
      result.started = response.started();
      break;
    case v1::GenerateResponse::kDelta: {
      const v1::GenerateDelta& delta = response.delta();
      if (!result.started) violate("a Delta before Started");
      if (delta.text().empty() && delta.token_ids().empty() && delta.prompt_logprobs().empty()) {
        violate("an empty Delta");
      }
      if (!IsValidUtf8(delta.text())) violate("a Delta whose text is not whole UTF-8");
      if (wants_logprobs && delta.logprobs_size() != delta.token_ids_size()) {
        violate(absl::StrCat("a Delta of ", delta.token_ids_size(), " ids with ",
                             delta.logprobs_size(), " logprobs"));
      }
      if (!wants_logprobs && delta.logprobs_size() > 0) violate("logprobs nobody asked for");
      result.text += delta.text();
      result.ids.insert(result.ids.end(), delta.token_ids().begin(), delta.token_ids().end());
      result.logprobs.insert(result.logprobs.end(), delta.logprobs().begin(),
                             delta.logprobs().end());
      result.deltas.push_back(delta);
      break;
    }
    case v1::GenerateResponse::kFinished:
      if (!result.started) violate("a Finished before Started");
      result.finished = response.finished();
      break;
    case v1::GenerateResponse::EVENT_NOT_SET:
      violate("a message without an event");
      break;
  }
}

}  // namespace

void SetTimeout(grpc::ClientContext& context, absl::Duration timeout) {
  context.set_deadline(absl::ToChronoTime(absl::Now() + Bound(timeout)));
}

RpcError DecodeError(const grpc::Status& status) {
  RpcError error;
  error.code = status.error_code();
  error.message = status.error_message();
  google::rpc::Status details;
  if (status.error_details().empty() || !details.ParseFromString(status.error_details())) {
    return error;
  }
  for (const google::protobuf::Any& any : details.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest bad_request;
    google::rpc::RetryInfo retry;
    if (any.UnpackTo(&info)) {
      error.reason = info.reason();
      error.domain = info.domain();
    } else if (any.UnpackTo(&bad_request)) {
      for (const auto& violation : bad_request.field_violations()) {
        error.fields.push_back(violation.field());
      }
    } else if (any.UnpackTo(&retry)) {
      error.retry_delay = FromProto(retry.retry_delay());
    } else if (any.Is<google::rpc::PreconditionFailure>()) {
      error.has_precondition_failure = true;
    } else if (any.Is<google::rpc::QuotaFailure>()) {
      error.has_quota_failure = true;
    } else if (any.Is<google::rpc::ResourceInfo>()) {
      error.has_resource_info = true;
    }
  }
  return error;
}

std::ostream& operator<<(std::ostream& out, const RpcError& error) {
  out << "code " << error.code << " reason '" << error.reason << "' domain '" << error.domain
      << "' fields [";
  for (const std::string& field : error.fields) out << " " << field;
  return out << " ] message '" << error.message << "'";
}

::testing::AssertionResult IsError(const RpcError& error, grpc::StatusCode code,
                                   std::string_view reason, std::string_view field) {
  const bool reason_fits = reason.empty() ? !error.reason.empty() : error.reason == reason;
  const bool field_fits = field.empty() || std::find(error.fields.begin(), error.fields.end(),
                                                     field) != error.fields.end();
  if (error.code == code && reason_fits && field_fits && error.domain == "orcd" &&
      !error.message.empty()) {
    return ::testing::AssertionSuccess() << error;
  }
  return ::testing::AssertionFailure() << error << "; wanted code " << code << " reason '" << reason
                                       << "' field '" << field << "' domain 'orcd' and a message";
}

::testing::AssertionResult IsComplete(const Generation& generation) {
  if (!generation.error.ok()) return ::testing::AssertionFailure() << generation.error;
  if (!generation.violation.empty()) return ::testing::AssertionFailure() << generation.violation;
  if (!generation.started) return ::testing::AssertionFailure() << "no Started";
  if (!generation.finished) return ::testing::AssertionFailure() << "no Finished";
  const v1::GenerateFinished& finished = *generation.finished;
  const bool hidden_end = finished.reason() == v1::FINISH_REASON_EOG ||
                          finished.reason() == v1::FINISH_REASON_STOP_TOKEN;
  const size_t drawn = generation.ids.size() + (hidden_end ? 1 : 0);
  if (finished.usage().generated_tokens() != drawn) {
    return ::testing::AssertionFailure()
           << "usage says " << finished.usage().generated_tokens() << " generated tokens, "
           << generation.ids.size() << " came and the reason is "
           << v1::FinishReason_Name(finished.reason());
  }
  if (finished.usage().prompt_tokens() != generation.started->prompt_tokens() ||
      finished.usage().prompt_tokens() == 0) {
    return ::testing::AssertionFailure()
           << "usage says " << finished.usage().prompt_tokens() << " prompt tokens, Started "
           << generation.started->prompt_tokens();
  }
  if (finished.model_digest().empty()) return ::testing::AssertionFailure() << "no model digest";
  return ::testing::AssertionSuccess();
}

GenerateCall::GenerateCall(v1::Worker::Stub& stub, const v1::GenerateRequest& request,
                           absl::Duration timeout) {
  SetTimeout(context_, timeout);
  wants_logprobs_ = request.has_logprobs();
  reader_ = stub.Generate(&context_, request);
}

GenerateCall::~GenerateCall() {
  context_.TryCancel();
  Finish();
}

bool GenerateCall::Read() {
  v1::GenerateResponse response;
  if (done_ || !reader_->Read(&response)) return false;
  Take(response, wants_logprobs_, result_);
  return true;
}

bool GenerateCall::ReadUntilStarted() {
  while (!result_.started) {
    if (!Read()) return false;
  }
  return true;
}

bool GenerateCall::ReadUntilTokens(size_t count) {
  while (result_.ids.size() < count) {
    if (!Read()) return false;
  }
  return true;
}

const Generation& GenerateCall::Finish() {
  while (Read()) {
  }
  if (!done_) {
    done_ = true;
    result_.error = DecodeError(reader_->Finish());
  }
  return result_;
}

WorkerClient::WorkerClient(const std::string& address) {
  grpc::ChannelArguments args;
  // Gives each client its own connection, so that its actions affect no other client.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetMaxReceiveMessageSize(-1);
  channel_ = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
  stub_ = v1::Worker::NewStub(channel_);
  health_stub_ = grpc::health::v1::Health::NewStub(channel_);
}

LoadResult WorkerClient::Load(
    const v1::LoadRequest& request, absl::Duration timeout,
    const std::function<void(grpc::ClientContext&, const v1::LoadProgress&)>& on_progress) {
  LoadResult result;
  grpc::ClientContext context;
  SetTimeout(context, timeout);
  result.begun = absl::Now();
  auto reader = stub_->Load(&context, request);
  v1::LoadResponse response;
  while (reader->Read(&response)) {
    result.loaded_last = response.has_loaded();
    if (response.has_loaded()) result.loaded = response.loaded();
    if (response.has_progress()) {
      result.progress.push_back({absl::Now(), response.progress()});
      if (on_progress) on_progress(context, response.progress());
    }
  }
  result.error = DecodeError(reader->Finish());
  result.ended = absl::Now();
  return result;
}

LoadResult WorkerClient::Load(const std::string& model) {
  v1::LoadRequest request;
  request.set_model(model);
  return Load(request);
}

Generation WorkerClient::Generate(const v1::GenerateRequest& request, absl::Duration timeout) {
  GenerateCall call(*stub_, request, timeout);
  return call.Finish();
}

RpcError WorkerClient::Unload(bool force, v1::UnloadResponse* response) {
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(30));
  v1::UnloadRequest request;
  request.set_force(force);
  v1::UnloadResponse unused;
  return DecodeError(stub_->Unload(&context, request, response != nullptr ? response : &unused));
}

RpcError WorkerClient::Cancel(const std::string& request_id, bool* found) {
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(30));
  v1::CancelRequest request;
  request.set_request_id(request_id);
  v1::CancelResponse response;
  const grpc::Status status = stub_->Cancel(&context, request, &response);
  if (found != nullptr) *found = response.found();
  return DecodeError(status);
}

RpcError WorkerClient::Tokenize(const v1::TokenizeRequest& request, std::vector<uint32_t>* ids) {
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(30));
  v1::TokenizeResponse response;
  const grpc::Status status = stub_->Tokenize(&context, request, &response);
  ids->assign(response.token_ids().begin(), response.token_ids().end());
  return DecodeError(status);
}

std::vector<uint32_t> WorkerClient::Tokens(const v1::TokenizeRequest& request) {
  std::vector<uint32_t> ids;
  const RpcError error = Tokenize(request, &ids);
  EXPECT_TRUE(error.ok()) << error;
  return ids;
}

v1::WorkerStatus WorkerClient::Status() {
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(10));
  v1::HealthResponse response;
  const grpc::Status status = stub_->Health(&context, {}, &response);
  EXPECT_TRUE(status.ok()) << "Health: " << DecodeError(status);
  return response.status();
}

RpcError WorkerClient::Check(const std::string& service,
                             grpc::health::v1::HealthCheckResponse::ServingStatus* status) {
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(10));
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::health::v1::HealthCheckResponse response;
  const grpc::Status rpc_status = health_stub_->Check(&context, request, &response);
  *status = response.status();
  return DecodeError(rpc_status);
}

bool WorkerClient::WaitForStatus(const std::function<bool(const v1::WorkerStatus&)>& condition,
                                 absl::Duration timeout) {
  return WaitUntil([&] { return condition(Status()); }, Bound(timeout));
}

bool WorkerClient::WaitForState(v1::WorkerState state) {
  return WaitForStatus([&](const v1::WorkerStatus& status) { return status.state() == state; });
}

bool WorkerClient::WaitForQuiet() {
  return WaitForStatus([](const v1::WorkerStatus& status) {
    return status.queue().running_requests() == 0 && status.queue().waiting_requests() == 0 &&
           status.kv_blocks().free() == status.kv_blocks().total();
  });
}

v1::GenerateRequest TextRequest(const std::string& text, uint32_t max_tokens) {
  v1::GenerateRequest request;
  request.mutable_text()->set_text(text);
  request.mutable_stop()->set_max_tokens(max_tokens);
  return request;
}

v1::GenerateRequest TokenRequest(const std::vector<uint32_t>& ids, uint32_t max_tokens) {
  v1::GenerateRequest request;
  request.mutable_tokens()->mutable_ids()->Add(ids.begin(), ids.end());
  request.mutable_stop()->set_max_tokens(max_tokens);
  return request;
}

v1::GenerateRequest ChatRequest(const std::string& user_message, uint32_t max_tokens) {
  v1::GenerateRequest request;
  v1::ChatMessage* message = request.mutable_chat()->add_messages();
  message->set_role(v1::CHAT_ROLE_USER);
  message->set_content(user_message);
  request.mutable_stop()->set_max_tokens(max_tokens);
  return request;
}

bool IsValidUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[k]); };
    const unsigned char lead = byte(i);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const int extra = lead >= 0xC2 && lead <= 0xDF   ? 1
                      : lead >= 0xE0 && lead <= 0xEF ? 2
                      : lead >= 0xF0 && lead <= 0xF4 ? 3
                                                     : 0;
    if (extra == 0 || i + extra >= text.size()) return false;
    uint32_t code_point = lead & (0x3F >> extra);
    for (int k = 1; k <= extra; ++k) {
      if ((byte(i + k) & 0xC0) != 0x80) return false;
      code_point = code_point << 6 | (byte(i + k) & 0x3F);
    }
    // Overlong forms, surrogates, and values beyond the last code point.
    if ((extra == 2 && code_point < 0x800) || (extra == 3 && code_point < 0x10000) ||
        (code_point >= 0xD800 && code_point <= 0xDFFF) || code_point > 0x10FFFF) {
      return false;
    }
    i += extra + 1;
  }
  return true;
}

}  // namespace orcd::testing
