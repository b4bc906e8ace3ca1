// HTTP/2 frame headers and the codes that the connection guard needs (RFC 9113).
#ifndef ORCD_WORKER_SECURITY_GUARD_HTTP2_FRAME_H_
#define ORCD_WORKER_SECURITY_GUARD_HTTP2_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace orcd::guard {

inline constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
inline constexpr size_t kFrameHeaderBytes = 9;
// The largest payload that the guard announces to clients; also the smallest limit that HTTP/2
// allows.
inline constexpr uint32_t kMaxFrameBytes = 16384;

namespace frame_type {
inline constexpr uint8_t kData = 0;
inline constexpr uint8_t kHeaders = 1;
inline constexpr uint8_t kPriority = 2;
inline constexpr uint8_t kRstStream = 3;
inline constexpr uint8_t kSettings = 4;
inline constexpr uint8_t kPushPromise = 5;
inline constexpr uint8_t kPing = 6;
inline constexpr uint8_t kGoaway = 7;
inline constexpr uint8_t kWindowUpdate = 8;
inline constexpr uint8_t kContinuation = 9;
}  // namespace frame_type

namespace frame_flag {
inline constexpr uint8_t kEndStream = 0x1;
inline constexpr uint8_t kAck = 0x1;
inline constexpr uint8_t kEndHeaders = 0x4;
inline constexpr uint8_t kPadded = 0x8;
inline constexpr uint8_t kPriority = 0x20;
}  // namespace frame_flag

namespace setting {
inline constexpr uint16_t kHeaderTableSize = 1;
inline constexpr uint16_t kMaxConcurrentStreams = 3;
inline constexpr uint16_t kMaxFrameSize = 5;
inline constexpr uint16_t kMaxHeaderListSize = 6;
}  // namespace setting

enum class Http2Error : uint32_t {
  kNoError = 0,
  kProtocolError = 1,
  kFrameSizeError = 6,
  kRefusedStream = 7,
  kCancel = 8,
  kCompressionError = 9,
  kEnhanceYourCalm = 11,
};

struct FrameHeader {
  uint32_t length = 0;
  uint8_t type = 0;
  uint8_t flags = 0;
  uint32_t stream = 0;
};

inline uint32_t ReadBigEndian32(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

inline void AppendBigEndian32(uint32_t value, std::string& out) {
  const char bytes[] = {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
                        static_cast<char>(value >> 8), static_cast<char>(value)};
  out.append(bytes, sizeof(bytes));
}

// `bytes` holds kFrameHeaderBytes.
inline FrameHeader ParseFrameHeader(const uint8_t* bytes) {
  return {.length = uint32_t{bytes[0]} << 16 | uint32_t{bytes[1]} << 8 | bytes[2],
          .type = bytes[3],
          .flags = bytes[4],
          .stream = ReadBigEndian32(bytes + 5) & 0x7fffffffu};
}

inline void AppendFrameHeader(const FrameHeader& header, std::string& out) {
  const char bytes[] = {static_cast<char>(header.length >> 16),
                        static_cast<char>(header.length >> 8), static_cast<char>(header.length),
                        static_cast<char>(header.type), static_cast<char>(header.flags)};
  out.append(bytes, sizeof(bytes));
  AppendBigEndian32(header.stream, out);
}

inline void AppendRstStream(uint32_t stream, Http2Error error, std::string& out) {
  AppendFrameHeader({.length = 4, .type = frame_type::kRstStream, .stream = stream}, out);
  AppendBigEndian32(static_cast<uint32_t>(error), out);
}

inline void AppendWindowUpdate(uint32_t stream, uint32_t increment, std::string& out) {
  AppendFrameHeader({.length = 4, .type = frame_type::kWindowUpdate, .stream = stream}, out);
  AppendBigEndian32(increment, out);
}

inline void AppendSetting(uint16_t id, uint32_t value, std::string& out) {
  out.push_back(static_cast<char>(id >> 8));
  out.push_back(static_cast<char>(id));
  AppendBigEndian32(value, out);
}

inline void AppendGoaway(uint32_t last_stream, Http2Error error, std::string_view why,
                         std::string& out) {
  AppendFrameHeader({.length = static_cast<uint32_t>(8 + why.size()), .type = frame_type::kGoaway},
                    out);
  AppendBigEndian32(last_stream, out);
  AppendBigEndian32(static_cast<uint32_t>(error), out);
  out.append(why);
}

}  // namespace orcd::guard

#endif  // ORCD_WORKER_SECURITY_GUARD_HTTP2_FRAME_H_
