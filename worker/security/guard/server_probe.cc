#include "worker/security/guard/server_probe.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "worker/security/guard/header_codec.h"
#include "worker/security/guard/http2_frame.h"

namespace orcd::guard {
namespace {

constexpr uint32_t kWindow = 1u << 30;
// Stream ids have 31 bits. The connection is made anew long before they run out.
constexpr uint32_t kLastStream = 1u << 30;

const std::string& HeaderBlock() {
  static const std::string* const block = [] {
    auto* made = new std::string;
    AppendLiteral(":method", "POST", *made);
    AppendLiteral(":scheme", "http", *made);
    AppendLiteral(":path", "/grpc.health.v1.Health/Check", *made);
    AppendLiteral(":authority", "guard", *made);
    AppendLiteral("te", "trailers", *made);
    AppendLiteral("content-type", "application/grpc", *made);
    return made;
  }();
  return *block;
}

}  // namespace

Descriptor ServerProbe::Connect() {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) {
    Fail();
    return {};
  }
  socket_ = Descriptor(pair[0]);
  stream_ = 0;
  received_.clear();
  std::string bytes(kPreface);
  AppendFrameHeader({.type = frame_type::kSettings}, bytes);
  AppendWindowUpdate(0, kWindow, bytes);
  Write(bytes);
  return Descriptor(pair[1]);
}

void ServerProbe::Fail() {
  socket_.Close();
  progress_.unknown = true;
  // The call under way gets no answer. The next connection's first call takes its number.
  progress_.sent = progress_.answered;
  ended_at_last_ = ended_before_last_;
}

void ServerProbe::Write(const std::string& bytes) {
  // A probe is small compared with a socket's buffer, and each one waits for its answer.
  const ssize_t sent = send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent != static_cast<ssize_t>(bytes.size())) Fail();
}

void ServerProbe::Send() {
  if (!socket_.valid() || progress_.sent > progress_.answered) return;
  if (stream_ >= kLastStream) return Fail();
  stream_ += stream_ == 0 ? 1 : 2;
  std::string bytes;
  AppendFrameHeader({.length = static_cast<uint32_t>(HeaderBlock().size()),
                     .type = frame_type::kHeaders,
                     .flags = frame_flag::kEndHeaders,
                     .stream = stream_},
                    bytes);
  bytes.append(HeaderBlock());
  // An empty message.
  AppendFrameHeader(
      {.length = 5, .type = frame_type::kData, .flags = frame_flag::kEndStream, .stream = stream_},
      bytes);
  bytes.append(5, '\0');
  ++progress_.sent;
  ended_before_last_ = std::exchange(ended_at_last_, progress_.ended);
  Write(bytes);
}

void ServerProbe::Receive() {
  std::array<char, 4096> buffer;
  while (socket_.valid()) {
    const ssize_t count = recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) break;
    if (count <= 0) return Fail();
    received_.append(buffer.data(), static_cast<size_t>(count));
  }
  size_t at = 0;
  std::string answers;
  while (received_.size() - at >= kFrameHeaderBytes) {
    const FrameHeader frame =
        ParseFrameHeader(reinterpret_cast<const uint8_t*>(received_.data()) + at);
    if (received_.size() - at < kFrameHeaderBytes + frame.length) break;
    const bool ack = (frame.flags & frame_flag::kAck) != 0;
    if (frame.type == frame_type::kSettings && !ack) {
      AppendFrameHeader({.type = frame_type::kSettings, .flags = frame_flag::kAck}, answers);
    } else if (frame.type == frame_type::kPing && !ack) {
      AppendFrameHeader(
          {.length = frame.length, .type = frame_type::kPing, .flags = frame_flag::kAck}, answers);
      answers.append(received_, at + kFrameHeaderBytes, frame.length);
    } else if (frame.stream == stream_ && progress_.sent > progress_.answered &&
               (frame.type == frame_type::kRstStream ||
                ((frame.type == frame_type::kHeaders || frame.type == frame_type::kData) &&
                 (frame.flags & frame_flag::kEndStream) != 0))) {
      progress_.answered = progress_.sent;
      progress_.ended_and_freed = ended_before_last_;
    }
    at += kFrameHeaderBytes + frame.length;
  }
  received_.erase(0, at);
  if (!answers.empty() && socket_.valid()) Write(answers);
}

}  // namespace orcd::guard
