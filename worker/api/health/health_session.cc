#include "worker/api/health/health_session.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace orcd {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr std::string_view kCheck = "/grpc.health.v1.Health/Check";
constexpr std::string_view kWatch = "/grpc.health.v1.Health/Watch";
// Room for a service name and its encoding.
constexpr size_t kMaxRequestBytes = 4 << 10;
// Prefix of a gRPC message: a compressed flag, then the length.
constexpr size_t kPrefixBytes = 5;

nghttp2_nv Field(std::string_view name, std::string_view value) {
  return {.name = reinterpret_cast<uint8_t*>(const_cast<char*>(name.data())),
          .value = reinterpret_cast<uint8_t*>(const_cast<char*>(value.data())),
          .namelen = name.size(),
          .valuelen = value.size(),
          .flags = NGHTTP2_NV_FLAG_NONE};
}

// Parses `body` into `request`; returns the reason if it is no valid message.
grpc::Status ReadRequest(std::string_view body, HealthCheckRequest& request) {
  if (body.size() > kMaxRequestBytes) {
    return {grpc::StatusCode::RESOURCE_EXHAUSTED,
            absl::StrCat("the request has more than ", kMaxRequestBytes, " bytes")};
  }
  if (body.size() >= kPrefixBytes && body[0] != 0) {
    return {grpc::StatusCode::UNIMPLEMENTED, "the request is compressed; send it as it is"};
  }
  uint32_t length = 0;
  for (size_t i = 1; i < std::min(body.size(), kPrefixBytes); ++i) {
    length = length << 8 | static_cast<uint8_t>(body[i]);
  }
  if (body.size() < kPrefixBytes || body.size() - kPrefixBytes != length ||
      !request.ParseFromArray(body.data() + kPrefixBytes, static_cast<int>(length))) {
    return {grpc::StatusCode::INVALID_ARGUMENT,
            "the request is no valid grpc.health.v1.HealthCheckRequest"};
  }
  return grpc::Status::OK;
}

void AppendMessage(HealthService::ServingStatus status, std::string& out) {
  HealthCheckResponse response;
  response.set_status(status);
  const std::string message = response.SerializeAsString();
  out.append({'\0', '\0', '\0', '\0', static_cast<char>(message.size())});
  out += message;
}

}  // namespace

HealthSession::HealthSession(const HealthService& health) : health_(health) {
  nghttp2_session_callbacks* callbacks = nullptr;
  nghttp2_session_callbacks_new(&callbacks);
  nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, OnBeginHeaders);
  nghttp2_session_callbacks_set_on_header_callback(callbacks, OnHeader);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, OnData);
  nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, OnFrame);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, OnClose);
  nghttp2_option* options = nullptr;
  nghttp2_option_new(&options);
  // nghttp2 would keep closed streams for priorities, 240 bytes each, as long as the connection.
  nghttp2_option_set_no_closed_streams(options, 1);
  nghttp2_session_server_new2(&session_, callbacks, this, options);
  nghttp2_option_del(options);
  nghttp2_session_callbacks_del(callbacks);
  const nghttp2_settings_entry settings[] = {{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, kMaxCalls}};
  nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings, std::size(settings));
}

HealthSession::~HealthSession() { nghttp2_session_del(session_); }

bool HealthSession::Receive(std::span<const uint8_t> bytes) {
  return nghttp2_session_mem_recv(session_, bytes.data(), bytes.size()) ==
         static_cast<ssize_t>(bytes.size());
}

bool HealthSession::Send(size_t most, std::string& out) {
  while (out.size() < most) {
    const uint8_t* bytes = nullptr;
    const ssize_t count = nghttp2_session_mem_send(session_, &bytes);
    if (count < 0) return false;
    if (count == 0) break;
    out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(count));
  }
  return !out.empty() || nghttp2_session_want_read(session_) != 0 ||
         nghttp2_session_want_write(session_) != 0;
}

void HealthSession::OnTick() {
  for (auto& [stream, call] : calls_) {
    if (call.is_watch && !call.end && Queue(call)) nghttp2_session_resume_data(session_, stream);
  }
}

bool HealthSession::Queue(Call& call) {
  if (health_.is_shut_down()) {
    call.end = HealthService::ShuttingDown();
    return true;
  }
  const HealthService::ServingStatus status = health_.Status(call.service);
  // A queued message may be outdated by now; the next one follows once it is sent. So at most one
  // message waits for a client that does not read.
  if (call.queued_status == status || !call.out.empty()) return false;
  call.queued_status = status;
  AppendMessage(status, call.out);
  return true;
}

void HealthSession::Begin(int32_t stream, Call& call) {
  HealthCheckRequest request;
  const bool is_known = call.path == kCheck || call.path == kWatch;
  const grpc::Status read = is_known ? ReadRequest(call.body, request)
                                     : grpc::Status(grpc::StatusCode::UNIMPLEMENTED,
                                                    "this port serves grpc.health.v1 only");
  call.body = {};
  if (!read.ok()) {
    call.end = read;
  } else if (call.path == kWatch) {
    call.is_watch = true;
    call.service = request.service();
    Queue(call);
  } else if (const auto status = health_.Status(request.service());
             status == HealthCheckResponse::SERVICE_UNKNOWN) {
    call.end = HealthService::UnknownService();
  } else {
    AppendMessage(status, call.out);
    call.end = grpc::Status::OK;
  }
  const nghttp2_nv fields[] = {Field(":status", "200"), Field("content-type", "application/grpc")};
  const nghttp2_data_provider provider = {.source = {.ptr = nullptr}, .read_callback = Read};
  nghttp2_submit_response(session_, stream, fields, std::size(fields), &provider);
}

int HealthSession::OnBeginHeaders(nghttp2_session*, const nghttp2_frame* frame, void* self) {
  if (frame->headers.cat == NGHTTP2_HCAT_REQUEST) {
    static_cast<HealthSession*>(self)->calls_[frame->hd.stream_id];
  }
  return 0;
}

int HealthSession::OnHeader(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name,
                            size_t name_bytes, const uint8_t* value, size_t value_bytes, uint8_t,
                            void* self) {
  constexpr std::string_view kPath = ":path";
  auto& calls = static_cast<HealthSession*>(self)->calls_;
  const auto found = calls.find(frame->hd.stream_id);
  if (found == calls.end()) return 0;
  if (std::string_view(reinterpret_cast<const char*>(name), name_bytes) != kPath) return 0;
  // Keep one byte more than the longest known path: a longer path matches none.
  found->second.path.assign(reinterpret_cast<const char*>(value),
                            std::min(value_bytes, kWatch.size() + 1));
  return 0;
}

int HealthSession::OnData(nghttp2_session*, uint8_t, int32_t stream, const uint8_t* data,
                          size_t bytes, void* self) {
  auto& calls = static_cast<HealthSession*>(self)->calls_;
  const auto found = calls.find(stream);
  if (found == calls.end()) return 0;
  std::string& body = found->second.body;
  // Keep one byte too many, which shows that the request is too large.
  body.append(reinterpret_cast<const char*>(data),
              std::min(bytes, kMaxRequestBytes + 1 - std::min(body.size(), kMaxRequestBytes + 1)));
  return 0;
}

int HealthSession::OnFrame(nghttp2_session*, const nghttp2_frame* frame, void* self) {
  const bool has_end = frame->hd.type == NGHTTP2_DATA || frame->hd.type == NGHTTP2_HEADERS;
  if (!has_end || (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0) return 0;
  auto& session = *static_cast<HealthSession*>(self);
  const auto found = session.calls_.find(frame->hd.stream_id);
  if (found != session.calls_.end()) session.Begin(frame->hd.stream_id, found->second);
  return 0;
}

int HealthSession::OnClose(nghttp2_session*, int32_t stream, uint32_t, void* self) {
  static_cast<HealthSession*>(self)->calls_.erase(stream);
  return 0;
}

ssize_t HealthSession::Read(nghttp2_session* nghttp2, int32_t stream, uint8_t* buffer, size_t bytes,
                            uint32_t* flags, nghttp2_data_source*, void* self) {
  auto& session = *static_cast<HealthSession*>(self);
  const auto found = session.calls_.find(stream);
  if (found == session.calls_.end()) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
  Call& call = found->second;
  const size_t count = std::min(bytes, call.out.size());
  std::memcpy(buffer, call.out.data(), count);
  call.out.erase(0, count);
  if (call.out.empty() && call.end) {
    *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
    const std::string code = absl::StrCat(static_cast<int>(call.end->error_code()));
    const std::string message = call.end->error_message();
    std::vector<nghttp2_nv> fields = {Field("grpc-status", code)};
    if (!message.empty()) fields.push_back(Field("grpc-message", message));
    nghttp2_submit_trailer(nghttp2, stream, fields.data(), fields.size());
  } else if (count == 0) {
    return NGHTTP2_ERR_DEFERRED;
  }
  return static_cast<ssize_t>(count);
}

}  // namespace orcd
