// Frames for tests of the guard: written, and read back.
#ifndef ORCD_WORKER_GUARD_FRAMES_FOR_TEST_H_
#define ORCD_WORKER_GUARD_FRAMES_FOR_TEST_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/guard/header_codec.h"
#include "worker/guard/http2_frame.h"

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

// The whole frames of `bytes`.
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

}  // namespace orcd::guard

#endif  // ORCD_WORKER_GUARD_FRAMES_FOR_TEST_H_
