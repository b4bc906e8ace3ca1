// Functions for the guard's tests that write frames and read them back.
#ifndef ORCD_WORKER_SECURITY_GUARD_FRAMES_FOR_TEST_H_
#define ORCD_WORKER_SECURITY_GUARD_FRAMES_FOR_TEST_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/security/guard/header_codec.h"
#include "worker/security/guard/http2_frame.h"

namespace orcd::guard {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct Frame {
  FrameHeader header;
  std::string payload;
};

inline std::string MakeFrame(uint8_t type, uint8_t flags, uint32_t stream,
                             std::string_view payload = "") {
  std::string bytes;
  AppendFrameHeader({.length = static_cast<uint32_t>(payload.size()),
                     .type = type,
                     .flags = flags,
                     .stream = stream},
                    bytes);
  bytes.append(payload);
  return bytes;
}

// Splits `bytes` into frames. A cut-off last frame is left out.
inline std::vector<Frame> SplitFrames(std::string_view bytes) {
  std::vector<Frame> frames;
  while (bytes.size() >= kFrameHeaderBytes) {
    Frame frame{.header = ParseFrameHeader(reinterpret_cast<const uint8_t*>(bytes.data())),
                .payload = ""};
    if (bytes.size() < kFrameHeaderBytes + frame.header.length) break;
    frame.payload = bytes.substr(kFrameHeaderBytes, frame.header.length);
    bytes.remove_prefix(kFrameHeaderBytes + frame.header.length);
    frames.push_back(std::move(frame));
  }
  return frames;
}

inline std::string EncodeBlock(HeaderEncoder& encoder, const Headers& headers) {
  std::vector<HeaderList::Field> fields;
  for (const auto& [name, value] : headers) fields.push_back({.name = name, .value = value});
  std::string block;
  encoder.Encode(fields, block);
  return block;
}

inline Headers DecodeBlock(HeaderDecoder& decoder, std::string_view block) {
  decoder.Begin();
  Headers headers;
  if (!decoder.Feed({reinterpret_cast<const uint8_t*>(block.data()), block.size()}, true)) {
    return {{"error", "the block cannot be decoded"}};
  }
  for (size_t i = 0; i < decoder.list().size(); ++i) {
    headers.emplace_back(decoder.list()[i].name, decoder.list()[i].value);
  }
  return headers;
}

inline std::string ValueOf(const Headers& headers, std::string_view name) {
  for (const auto& [each, value] : headers) {
    if (each == name) return value;
  }
  return "";
}

inline Headers CallOf(std::string_view path, const Headers& more = {}) {
  Headers headers = {{":method", "POST"},          {":scheme", "http"},
                     {":path", std::string(path)}, {":authority", "worker"},
                     {"te", "trailers"},           {"content-type", "application/grpc"}};
  headers.insert(headers.end(), more.begin(), more.end());
  return headers;
}

// A message as gRPC frames it.
inline std::string GrpcMessage(std::string_view text) {
  std::string bytes(1, '\0');
  AppendBigEndian32(static_cast<uint32_t>(text.size()), bytes);
  bytes.append(text);
  return bytes;
}

// The DATA of each stream without padding, including the DATA of a cut-off last frame.
inline std::map<uint32_t, std::string> BodiesOf(std::string_view bytes) {
  std::map<uint32_t, std::string> bodies;
  while (bytes.size() >= kFrameHeaderBytes) {
    const FrameHeader header = ParseFrameHeader(reinterpret_cast<const uint8_t*>(bytes.data()));
    std::string_view payload = bytes.substr(kFrameHeaderBytes, header.length);
    bytes.remove_prefix(kFrameHeaderBytes + payload.size());
    if (header.type != frame_type::kData) continue;
    if ((header.flags & frame_flag::kPadded) != 0) {
      if (payload.empty()) continue;
      const size_t padding = static_cast<uint8_t>(payload[0]) + size_t{1};
      payload = payload.substr(1, header.length < padding ? 0 : header.length - padding);
    }
    bodies[header.stream].append(payload);
  }
  return bodies;
}

// Describes the first fault in the bytes that the server got, given the bytes that the client sent.
// Empty if the server's bytes are whole frames of the client or frames that the filter sends
// itself.
inline std::string FaultInRelayed(std::string_view client, std::string_view server) {
  if (server.empty()) return "";
  if (!server.starts_with(kPreface)) return "no preface";
  server.remove_prefix(kPreface.size());
  client.remove_prefix(kPreface.size());
  std::set<uint32_t> opened;
  std::map<int, int> counts;
  for (const Frame& frame : SplitFrames(client)) {
    if (frame.header.type == frame_type::kHeaders) opened.insert(frame.header.stream);
    const bool ack = (frame.header.flags & frame_flag::kAck) != 0;
    if (frame.header.type != frame_type::kSettings || !ack) ++counts[frame.header.type];
  }
  const std::string where = " to the server that the client did not send";
  for (const Frame& frame : SplitFrames(server)) {
    const FrameHeader& header = frame.header;
    const bool ack = header.type == frame_type::kSettings && (header.flags & frame_flag::kAck) != 0;
    const bool own = ack || (header.length == 0 && header.type == frame_type::kSettings);
    if (header.length > kMaxFrameBytes) return "a frame that is too large";
    if (header.stream != 0 && !opened.contains(header.stream)) return "a stream" + where;
    switch (header.type) {
      case frame_type::kData:
      case frame_type::kContinuation:
      // The filter sends these two for streams that it refuses, and to return credit.
      case frame_type::kRstStream:
      case frame_type::kWindowUpdate:
        break;
      case frame_type::kHeaders:
      case frame_type::kSettings:
      case frame_type::kPing:
      case frame_type::kGoaway:
        // Frames that are relayed as they arrive may be cut off where the client's bytes end.
        if (!own && --counts[header.type] < 0) return "a frame" + where;
        break;
      default:
        return "a frame of an unknown type" + where;
    }
  }
  const std::map<uint32_t, std::string> given = BodiesOf(client);
  for (const auto& [stream, body] : BodiesOf(server)) {
    const auto found = given.find(stream);
    // The server has the beginning of the body of a refused call.
    if (found == given.end() || !found->second.starts_with(body)) return "a body" + where;
  }
  return "";
}

}  // namespace orcd::guard

#endif  // ORCD_WORKER_SECURITY_GUARD_FRAMES_FOR_TEST_H_
