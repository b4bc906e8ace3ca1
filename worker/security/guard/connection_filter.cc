#include "worker/security/guard/connection_filter.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace orcd::guard {
namespace {

// Charge of a DATA frame with this payload. gRPC needs one and a half times its bytes, because it
// keeps buffers as they were read, and a fixed part. Measured with gRPC 1.51 (2026-11-25): a call
// takes 12 KiB, and 7 KiB more while it is cancelled; 3400 calls of 9 KB each, when a frame was
// charged a quarter and 256 bytes, held 68 MiB.
constexpr int64_t kDataFrameCharge = 1024;
int64_t ChargeOf(uint32_t payload) { return payload + payload / 2 + kDataFrameCharge; }
constexpr uint32_t kGrpcPrefixBytes = 5;
constexpr size_t kMaxSettings = 64;
// A header block may have this many compressed bytes, whatever the size of its list.
constexpr size_t kMinBlockBytes = 1 << 20;
constexpr size_t kBytesPerContinuation = 4096;
constexpr size_t kMinContinuations = 64;
// Credit is given back in parts of at least this many bytes.
constexpr uint32_t kCreditPart = 2048;
constexpr size_t kSettingBytes = 6;
constexpr size_t kFieldOverhead = 32;
// Largest number of reset calls of a connection that gRPC may still be busy with while the client
// is read. The first applies if the loop has fewer than kManyUnconfirmed of them in all, the second
// otherwise.
constexpr size_t kMaxLingering = 128;
constexpr size_t kMinLingering = 2;
constexpr int64_t kManyUnconfirmed = 512;

// Largest charge that is kept for whole messages of a call that gRPC may not have read: the charge
// of its window of 64 KiB, in frames of the largest size and a few more.
constexpr int64_t kUnreadCharge = 112 << 10;
// Services that come with gRPC.
constexpr std::string_view kGrpcServices = "/grpc.";

absl::string_view Absl(std::string_view text) { return {text.data(), text.size()}; }

std::string_view Text(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Percent-encodes as gRPC does: printable characters other than % stay as they are.
std::string PercentEncode(std::string_view text) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte >= 0x20 && byte <= 0x7e && c != '%') {
      result.push_back(c);
    } else {
      result.push_back('%');
      result.push_back(kHex[byte >> 4]);
      result.push_back(kHex[byte & 15]);
    }
  }
  return result;
}

std::string UnpaddedBase64(const std::string& bytes) {
  std::string text = absl::Base64Escape(bytes);
  text.erase(text.find_last_not_of('=') + 1);
  return text;
}

bool IsBinaryName(std::string_view name) { return name.ends_with("-bin"); }

// The six bits that the character encodes, or -1.
int Base64Value(char c) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const size_t at = kDigits.find(c);
  return at == std::string_view::npos ? -1 : static_cast<int>(at);
}

// True for base64 with or without padding, and for raw bytes after a zero byte, as gRPC sends them
// to gRPC. Any other value would make gRPC end its connection, as would non-zero unused bits in the
// last character.
bool IsBinaryValue(std::string_view value) {
  if (value.empty() || value.front() == '\0') return true;
  const std::string_view digits = value.substr(0, value.find_last_not_of('=') + 1);
  if (value.size() - digits.size() > 2 || digits.size() % 4 == 1) return false;
  if (!std::all_of(digits.begin(), digits.end(), [](char c) { return Base64Value(c) >= 0; })) {
    return false;
  }
  const int unused = digits.size() % 4 == 2 ? 0xf : digits.size() % 4 == 3 ? 0x3 : 0;
  return unused == 0 || (Base64Value(digits.back()) & unused) == 0;
}

bool IsWellFormed(const HeaderList::Field& field) {
  const auto* name = reinterpret_cast<const uint8_t*>(field.name.data());
  const auto* value = reinterpret_cast<const uint8_t*>(field.value.data());
  return nghttp2_check_header_name(name, field.name.size()) != 0 &&
         (IsBinaryName(field.name) || nghttp2_check_header_value(value, field.value.size()) != 0);
}

// The parts of the request that decide whether it is refused.
struct Request {
  bool well_formed = true;
  bool has_path = false;
  bool has_method = false;
  bool has_scheme = false;
  bool has_authority = false;
  CallHeaders call;
  std::string_view encoding;
  // Name of a header whose value should be base64 and is not.
  std::string_view bad_binary;
};

// True if a request may have this pseudo-header, and this is its first occurrence.
bool TakePseudo(const HeaderList::Field& field, Request& request) {
  bool* seen = nullptr;
  if (field.name == ":path") {
    seen = &request.has_path;
    request.call.path = field.value;
  } else if (field.name == ":method") {
    seen = &request.has_method;
  } else if (field.name == ":scheme") {
    seen = &request.has_scheme;
  } else if (field.name == ":authority") {
    seen = &request.has_authority;
  }
  return seen != nullptr && !std::exchange(*seen, true);
}

Request Read(const HeaderList& list) {
  Request request;
  bool regular = false;
  for (size_t i = 0; i < list.size(); ++i) {
    const HeaderList::Field field = list[i];
    if (!IsWellFormed(field)) request.well_formed = false;
    if (field.name.starts_with(':')) {
      if (regular || !TakePseudo(field, request)) request.well_formed = false;
      continue;
    }
    regular = true;
    if (field.name == "authorization" && request.call.authorization.empty()) {
      request.call.authorization = field.value;
    } else if (field.name == "grpc-encoding") {
      request.encoding = field.value;
    } else if (IsBinaryName(field.name) && !IsBinaryValue(field.value)) {
      request.bad_binary = field.name;
    }
  }
  if (!request.has_path || !request.has_method) request.well_formed = false;
  return request;
}

absl::Status HeadersTooLarge(size_t bytes, size_t limit) {
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat("the call's headers have ", bytes,
                                " bytes, counting 32 for each beside its ", "text, and may have ",
                                limit, "; send less in them, or raise --max-metadata-bytes"),
                   {.reason = "HEADERS_TOO_LARGE", .subject = "max-metadata-bytes"});
}

absl::Status Compressed(std::string_view encoding) {
  return MakeError(absl::StatusCode::kUnimplemented,
                   absl::StrCat("the request is compressed (grpc-encoding ",
                                Absl(encoding.substr(0, 32)), "); send it uncompressed"),
                   {.reason = "COMPRESSION_UNSUPPORTED", .subject = "grpc-encoding"});
}

absl::Status BadTrailer(std::string_view name) {
  // Its bytes may be any, and an error's text is UTF-8.
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat("the trailer '", absl::CHexEscape(Absl(name.substr(0, 64))),
                                "' has a name or value that HTTP/2 does not allow there"),
                   {.reason = "MALFORMED_REQUEST", .field = "trailers"});
}

absl::Status BadBinary(std::string_view name) {
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat("the value of the header ", Absl(name.substr(0, 64)),
                                " is not base64, as headers that end in -bin must be"),
                   {.reason = "MALFORMED_REQUEST", .field = std::string(name.substr(0, 64))});
}

}  // namespace

ConnectionFilter::ConnectionFilter(const FilterOptions& options, TransportBudget& total,
                                   ServerProgress* progress)
    : options_(options),
      progress_(progress),
      budget_(options.max_connection_bytes, total),
      decoder_(options.max_header_list_bytes) {}

void ConnectionFilter::SetPeerNames(std::vector<std::string> names) {
  peer_names_ = std::move(names);
  for (const std::string& name : peer_names_) {
    peer_values_.push_back(std::string(1, '\0') + name);
    peer_bytes_ += kPeerNameHeader.size() + peer_values_.back().size() + kFieldOverhead;
  }
}

void ConnectionFilter::Dismiss(Output& out) {
  dismissed_ = true;
  Fail(Http2Error::kNoError, "the worker has as many connections as --max-connections allows", out);
}

bool ConnectionFilter::ChargeConnection() {
  return budget_.Charge(options_.connection_charge) == ConnectionBudget::Result::kCharged;
}

ConnectionFilter::~ConnectionFilter() {
  if (progress_ == nullptr) return;
  progress_->unconfirmed -= std::count_if(lingering_.begin(), lingering_.end(),
                                          [](const Linger& l) { return l.counted; });
  progress_->kept -= static_cast<int64_t>(ended_.size());
}

size_t ConnectionFilter::MaxLingering() const {
  if (progress_ == nullptr) return SIZE_MAX;
  return progress_->unconfirmed < kManyUnconfirmed ? kMaxLingering : kMinLingering;
}

void ConnectionFilter::Tick(absl::Time now, Output& out) {
  const bool by_time = progress_ == nullptr || progress_->unknown;
  if (!by_time) {
    for (Linger& linger : lingering_) {
      if (linger.fence > progress_->answered) break;
      if (linger.own_fence == 0) {
        linger.own_fence = fences_sent_ + 1;
        linger.until = now + options_.reset_linger;
      }
      // A client that does not read keeps its fence from coming back. That must not slow down the
      // reading of other clients.
      if (linger.until <= now && std::exchange(linger.counted, false)) --progress_->unconfirmed;
    }
  }
  while (!ended_.empty()) {
    const Linger& first = ended_.front();
    if (by_time ? first.until > now : first.fence > progress_->answered) break;
    budget_.Release(first.charge);
    progress_->freed_bytes += first.charge / 2;
    --progress_->kept;
    ended_.pop_front();
  }
  while (!lingering_.empty()) {
    const Linger& first = lingering_.front();
    if (by_time ? first.until > now : first.own_fence == 0 || first.own_fence > fences_passed_) {
      break;
    }
    budget_.Release(first.charge);
    if (progress_ != nullptr) {
      progress_->freed_bytes += first.charge;
      if (first.counted) --progress_->unconfirmed;
    }
    lingering_.pop_front();
  }
  const bool waits = !lingering_.empty() && lingering_.front().own_fence > fences_passed_;
  if (waits && fences_sent_ == fences_passed_) SendFence(out);
}

void ConnectionFilter::Fail(Http2Error error, std::string_view why, Output& out) {
  if (failed_) return;
  failed_ = true;
  // A client that never began to speak HTTP/2 would not understand a GOAWAY.
  if (server_at_boundary_ && preface_bytes_ == kPreface.size()) {
    AppendGoaway(last_stream_, error, why, out.to_client);
  }
}

size_t ConnectionFilter::FromClient(std::span<const uint8_t> bytes, absl::Time now, Output& out) {
  const size_t all = bytes.size();
  Tick(now, out);
  if (preface_bytes_ < kPreface.size() && !TakePreface(bytes, out)) return all - bytes.size();
  while (!failed_) {
    if (!in_frame_) {
      if (bytes.empty() || !accepting() || out.to_client.size() > kMaxInjected) break;
      const size_t take = std::min(bytes.size(), kFrameHeaderBytes - header_filled_);
      std::memcpy(header_bytes_.data() + header_filled_, bytes.data(), take);
      header_filled_ += take;
      bytes = bytes.subspan(take);
      if (header_filled_ < kFrameHeaderBytes) break;
      header_filled_ = 0;
      frame_ = ParseFrameHeader(header_bytes_.data());
      in_frame_ = true;
      BeginFrame(out);
      continue;
    }
    if (payload_left_ > 0) {
      if (bytes.empty()) break;
      TakePayload(bytes, out);
    } else if (padding_left_ > 0) {
      if (bytes.empty()) break;
      const size_t skip = std::min<size_t>(bytes.size(), padding_left_);
      bytes = bytes.subspan(skip);
      padding_left_ -= static_cast<uint32_t>(skip);
    } else {
      in_frame_ = false;
      EndFrame(now, out);
    }
  }
  ReturnCredit(out);
  return all - bytes.size();
}

bool ConnectionFilter::TakePreface(std::span<const uint8_t>& bytes, Output& out) {
  const size_t take = std::min(bytes.size(), kPreface.size() - preface_bytes_);
  if (Text(bytes.first(take)) != kPreface.substr(preface_bytes_, take)) {
    Fail(Http2Error::kProtocolError, "the client does not begin as HTTP/2 does", out);
    return false;
  }
  preface_bytes_ += take;
  bytes = bytes.subspan(take);
  if (preface_bytes_ < kPreface.size()) return false;
  out.to_server.append(kPreface);
  return true;
}

void ConnectionFilter::BeginFrame(Output& out) {
  payload_left_ = frame_.length;
  padding_left_ = 0;
  collected_.clear();
  payload_ = Payload::kSwallow;
  const auto fail = [&](Http2Error error, std::string_view why) { Fail(error, why, out); };
  if (frame_.length > kMaxFrameBytes) {
    return fail(Http2Error::kFrameSizeError, "a frame is larger than 16384 bytes");
  }
  if (block_stream_ != 0 &&
      (frame_.type != frame_type::kContinuation || frame_.stream != block_stream_)) {
    return fail(Http2Error::kProtocolError, "another frame stands in a header block");
  }
  if (!settings_seen_) {
    if (frame_.type != frame_type::kSettings || (frame_.flags & frame_flag::kAck) != 0) {
      return fail(Http2Error::kProtocolError, "the first frame is not SETTINGS");
    }
    settings_seen_ = true;
  }
  const bool known = streams_.contains(frame_.stream);
  const bool used = frame_.stream % 2 == 1 && frame_.stream <= last_stream_;
  const auto relay = [&] {
    payload_ = Payload::kRelay;
    AppendFrameHeader(frame_, out.to_server);
  };
  switch (frame_.type) {
    case frame_type::kData:
      if (!used) return fail(Http2Error::kProtocolError, "DATA on a stream that was not opened");
      return BeginData(out);
    case frame_type::kHeaders:
      if (frame_.stream % 2 == 0) {
        return fail(Http2Error::kProtocolError, "HEADERS on a stream that is no client's");
      }
      return BeginHeaders(out);
    case frame_type::kContinuation:
      if (block_stream_ == 0) {
        return fail(Http2Error::kProtocolError, "CONTINUATION without HEADERS");
      }
      return BeginContinuation(out);
    case frame_type::kPriority:
      if (frame_.length != 5) return fail(Http2Error::kFrameSizeError, "PRIORITY is not 5 bytes");
      return;
    case frame_type::kRstStream:
      if (frame_.length != 4) return fail(Http2Error::kFrameSizeError, "RST_STREAM is not 4 bytes");
      // HTTP/2 calls RST_STREAM on a stream that was not opened an error, but gRPC's own clients
      // send it for a call that is cancelled before its headers have left.
      if (known && !streams_[frame_.stream].refusing) relay();
      return;
    case frame_type::kSettings:
      if (frame_.stream != 0) return fail(Http2Error::kProtocolError, "SETTINGS on a stream");
      if (frame_.length % kSettingBytes != 0 ||
          ((frame_.flags & frame_flag::kAck) != 0 && frame_.length != 0)) {
        return fail(Http2Error::kFrameSizeError, "SETTINGS has another size than its entries");
      }
      if (frame_.length > kMaxSettings * kSettingBytes) {
        return fail(Http2Error::kEnhanceYourCalm, "SETTINGS has more than 64 entries");
      }
      payload_ = Payload::kCollect;
      collect_bytes_ = frame_.length;
      return;
    case frame_type::kPing:
      if (frame_.length != 8) return fail(Http2Error::kFrameSizeError, "PING is not 8 bytes");
      if (frame_.stream != 0) return fail(Http2Error::kProtocolError, "PING on a stream");
      if ((frame_.flags & frame_flag::kAck) == 0) ++unanswered_;
      return relay();
    case frame_type::kGoaway:
      if (frame_.length < 8) return fail(Http2Error::kFrameSizeError, "GOAWAY is under 8 bytes");
      if (frame_.stream != 0) return fail(Http2Error::kProtocolError, "GOAWAY on a stream");
      return relay();
    case frame_type::kWindowUpdate:
      if (frame_.length != 4) {
        return fail(Http2Error::kFrameSizeError, "WINDOW_UPDATE is not 4 bytes");
      }
      if (frame_.stream != 0 && !used) {
        return fail(Http2Error::kProtocolError, "WINDOW_UPDATE on a stream that was not opened");
      }
      if (frame_.stream == 0 || (known && !streams_[frame_.stream].refusing)) relay();
      return;
    case frame_type::kPushPromise:
      return fail(Http2Error::kProtocolError, "a client sends PUSH_PROMISE");
    default:
      // HTTP/2 requires receivers to ignore frames of unknown types.
      return;
  }
}

void ConnectionFilter::BeginData(Output& out) {
  if ((frame_.flags & frame_flag::kPadded) != 0) {
    if (frame_.length == 0) {
      return Fail(Http2Error::kFrameSizeError, "padded DATA has no pad length", out);
    }
    payload_ = Payload::kPadLength;
    collect_bytes_ = 1;
    return;
  }
  RelayData(frame_.length, out);
}

void ConnectionFilter::RelayData(uint32_t payload, Output& out) {
  // The pad length, which has been read, and the padding.
  const uint32_t padding = frame_.length - payload;
  payload_left_ = payload;
  padding_left_ = padding - std::min(padding, 1u);
  const auto found = streams_.find(frame_.stream);
  if (found == streams_.end() || found->second.refusing) {
    payload_ = Payload::kSwallow;
    swallowed_ += frame_.length;
    return;
  }
  Stream& stream = found->second;
  if (stream.client_ended) {
    return Fail(Http2Error::kProtocolError, "DATA after the end of its stream", out);
  }
  const int64_t charge = ChargeOf(payload);
  if (const auto result = budget_.Charge(charge); result != ConnectionBudget::Result::kCharged) {
    payload_ = Payload::kSwallow;
    swallowed_ += frame_.length;
    return RefuseOpen(frame_.stream, stream, FullError(result), out);
  }
  stream.body_charge += charge;
  if (padding > 0) {
    swallowed_ += padding;
    AppendWindowUpdate(frame_.stream, padding, Injected(out));
  }
  payload_ = Payload::kRelay;
  AppendFrameHeader({.length = payload,
                     .type = frame_type::kData,
                     .flags = static_cast<uint8_t>(frame_.flags & frame_flag::kEndStream),
                     .stream = frame_.stream},
                    out.to_server);
}

void ConnectionFilter::BeginHeaders(Output& out) {
  const auto found = streams_.find(frame_.stream);
  if (found != streams_.end() && found->second.client_ended) {
    return Fail(Http2Error::kProtocolError, "HEADERS after the end of their stream", out);
  }
  block_stream_ = frame_.stream;
  block_end_stream_ = (frame_.flags & frame_flag::kEndStream) != 0;
  block_bytes_ = 0;
  block_frames_ = 0;
  decoder_.Begin();
  collect_bytes_ = 0;
  if ((frame_.flags & frame_flag::kPadded) != 0) collect_bytes_ += 1;
  if ((frame_.flags & frame_flag::kPriority) != 0) collect_bytes_ += 5;
  if (frame_.length < collect_bytes_) {
    return Fail(Http2Error::kFrameSizeError, "HEADERS is shorter than its fields", out);
  }
  payload_ = collect_bytes_ > 0 ? Payload::kHeaderPrefix : Payload::kHeaderBlock;
  CountBlock(frame_.length, out);
}

void ConnectionFilter::BeginContinuation(Output& out) {
  payload_ = Payload::kHeaderBlock;
  CountBlock(frame_.length, out);
}

void ConnectionFilter::CountBlock(uint32_t bytes, Output& out) {
  block_bytes_ += bytes;
  ++block_frames_;
  const size_t most = std::max(kMinBlockBytes, 2 * options_.max_header_list_bytes);
  if (block_bytes_ > most || block_frames_ > kMinContinuations + most / kBytesPerContinuation) {
    Fail(Http2Error::kEnhanceYourCalm, "a header block does not end", out);
  }
}

void ConnectionFilter::TakePayload(std::span<const uint8_t>& bytes, Output& out) {
  const bool collects = payload_ == Payload::kCollect || payload_ == Payload::kPadLength ||
                        payload_ == Payload::kHeaderPrefix;
  const size_t wanted = collects ? collect_bytes_ - collected_.size() : payload_left_;
  const std::span<const uint8_t> part = bytes.first(std::min(bytes.size(), wanted));
  bytes = bytes.subspan(part.size());
  payload_left_ -= static_cast<uint32_t>(part.size());
  switch (payload_) {
    case Payload::kSwallow:
      return;
    case Payload::kRelay:
      out.to_server.append(Text(part));
      if (payload_left_ == 0) out.to_server.append(std::exchange(server_pending_, {}));
      if (frame_.type == frame_type::kData) {
        // The server may have ended the call while the frame was being relayed.
        if (const auto found = streams_.find(frame_.stream); found != streams_.end()) {
          TrackMessages(found->second, part);
        }
      }
      return;
    case Payload::kHeaderBlock:
      if (!decoder_.Feed(part, false)) {
        Fail(Http2Error::kCompressionError, "a header block cannot be decoded", out);
      }
      return;
    case Payload::kCollect:
    case Payload::kPadLength:
    case Payload::kHeaderPrefix:
      break;
  }
  collected_.append(Text(part));
  if (collected_.size() < collect_bytes_ || payload_ == Payload::kCollect) return;
  const bool padded = (frame_.flags & frame_flag::kPadded) != 0;
  const uint32_t padding = padded ? static_cast<uint8_t>(collected_[0]) : 0;
  if (padding > payload_left_) {
    return Fail(Http2Error::kProtocolError, "a frame has more padding than bytes", out);
  }
  if (payload_ == Payload::kPadLength) return RelayData(payload_left_ - padding, out);
  payload_left_ -= padding;
  padding_left_ = padding;
  payload_ = Payload::kHeaderBlock;
}

void ConnectionFilter::TrackMessages(Stream& stream, std::span<const uint8_t> body) {
  while (!body.empty()) {
    if (stream.prefix_bytes < kGrpcPrefixBytes) {
      // The first byte says whether the message is compressed.
      if (stream.prefix_bytes > 0) stream.message_left = stream.message_left << 8 | body.front();
      ++stream.prefix_bytes;
      ++stream.unfinished;
      body = body.subspan(1);
    } else {
      const size_t take = std::min<size_t>(body.size(), stream.message_left);
      stream.message_left -= static_cast<uint32_t>(take);
      stream.unfinished += static_cast<int64_t>(take);
      body = body.subspan(take);
    }
    if (stream.prefix_bytes == kGrpcPrefixBytes && stream.message_left == 0) {
      stream.prefix_bytes = 0;
      stream.unfinished = 0;
      stream.messages = std::min(stream.messages + 1, 2);
      if (!stream.of_grpc && !std::exchange(stream.in_use, true)) ++calls_in_use_;
    }
  }
}

void ConnectionFilter::EndClientSide(uint32_t id, absl::Time now) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  found->second.client_ended = true;
  if (found->second.server_ended) CloseStream(id, /*linger=*/false, now);
}

void ConnectionFilter::EndFrame(absl::Time now, Output& out) {
  switch (frame_.type) {
    case frame_type::kData:
      if ((frame_.flags & frame_flag::kEndStream) != 0) EndClientSide(frame_.stream, now);
      return;
    case frame_type::kHeaders:
    case frame_type::kContinuation:
      if ((frame_.flags & frame_flag::kEndHeaders) != 0) EndHeaderBlock(now, out);
      return;
    case frame_type::kRstStream:
      CloseStream(frame_.stream, /*linger=*/true, now);
      return;
    case frame_type::kSettings:
      return EndClientSettings(out);
    default:
      return;
  }
}

void ConnectionFilter::EndClientSettings(Output& out) {
  established_ = true;
  const bool ack = (frame_.flags & frame_flag::kAck) != 0;
  std::string entries;
  if (!ack) {
    // The server's encoder gets no table, whatever the client offers, because the filter writes
    // blocks too and drops some of the server's.
    AppendSetting(setting::kHeaderTableSize, 0, entries);
    for (size_t at = 0; at < collected_.size(); at += kSettingBytes) {
      const std::string_view entry = std::string_view(collected_).substr(at, kSettingBytes);
      if (entry[0] == 0 && entry[1] == setting::kHeaderTableSize) continue;
      entries.append(entry);
    }
    ++unanswered_;
    unacked_settings_.push_back(false);
  }
  AppendFrameHeader({.length = static_cast<uint32_t>(entries.size()),
                     .type = frame_type::kSettings,
                     .flags = frame_.flags},
                    out.to_server);
  out.to_server.append(entries);
}

void ConnectionFilter::EndHeaderBlock(absl::Time now, Output& out) {
  const uint32_t id = std::exchange(block_stream_, 0);
  if (!decoder_.Feed({}, true)) {
    return Fail(Http2Error::kCompressionError, "a header block cannot be decoded", out);
  }
  if (id > last_stream_) {
    last_stream_ = id;
    OpenCall(id, out);
  } else if (const auto found = streams_.find(id);
             found != streams_.end() && !found->second.refusing) {
    ForwardTrailers(id, found->second, out);
    if (!found->second.refusing) EndClientSide(id, now);
  } else if (block_end_stream_) {
    EndClientSide(id, now);
  }
  decoder_.Begin();
}

void ConnectionFilter::OpenCall(uint32_t id, Output& out) {
  const bool ended = block_end_stream_;
  if (decoder_.too_large()) {
    return Answer(id, ended, HeadersTooLarge(decoder_.list_bytes(), options_.max_header_list_bytes),
                  out);
  }
  const Request request = Read(decoder_.list());
  if (!request.well_formed) return AppendRstStream(id, Http2Error::kProtocolError, Injected(out));
  if (streams_.size() >= options_.max_streams) {
    return AppendRstStream(id, Http2Error::kRefusedStream, Injected(out));
  }
  if (!request.bad_binary.empty()) return Answer(id, ended, BadBinary(request.bad_binary), out);
  if (options_.admit) {
    const absl::Status admitted = options_.admit(request.call, peer_names_);
    if (!admitted.ok()) return Answer(id, ended, admitted, out);
  }
  if (!request.encoding.empty() && request.encoding != "identity") {
    return Answer(id, ended, Compressed(request.encoding), out);
  }
  const int64_t charge =
      options_.stream_charge + 2 * static_cast<int64_t>(decoder_.list_bytes() + peer_bytes_);
  if (const auto result = budget_.Charge(charge); result != ConnectionBudget::Result::kCharged) {
    return Answer(id, ended, FullError(result), out);
  }
  Stream& stream = streams_[id];
  stream.call_charge = charge;
  stream.of_grpc = request.call.path.starts_with(kGrpcServices);
  stream.client_ended = ended;
  ForwardHeaders(id, ended, /*with_peer=*/true, out);
}

void ConnectionFilter::ForwardTrailers(uint32_t id, Stream& stream, Output& out) {
  if (!block_end_stream_) {
    return Fail(Http2Error::kProtocolError, "trailers do not end their stream", out);
  }
  if (decoder_.too_large()) {
    return RefuseOpen(id, stream,
                      HeadersTooLarge(decoder_.list_bytes(), options_.max_header_list_bytes), out);
  }
  for (size_t i = 0; i < decoder_.list().size(); ++i) {
    const HeaderList::Field field = decoder_.list()[i];
    if (field.name.starts_with(':') || !IsWellFormed(field)) {
      return RefuseOpen(id, stream, BadTrailer(field.name), out);
    }
    if (IsBinaryName(field.name) && !IsBinaryValue(field.value)) {
      return RefuseOpen(id, stream, BadBinary(field.name), out);
    }
  }
  ForwardHeaders(id, /*end_stream=*/true, /*with_peer=*/false, out);
}

void ConnectionFilter::ForwardHeaders(uint32_t id, bool end_stream, bool with_peer, Output& out) {
  fields_.clear();
  const HeaderList& list = decoder_.list();
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].name.starts_with(kPeerPrefix)) fields_.push_back(list[i]);
  }
  if (with_peer) {
    for (const std::string& value : peer_values_) {
      fields_.push_back({.name = kPeerNameHeader, .value = value});
    }
  }
  block_.clear();
  if (!encoder_.Encode(fields_, block_)) {
    return Fail(Http2Error::kEnhanceYourCalm, "no memory for headers", out);
  }
  std::string_view rest = block_;
  uint8_t type = frame_type::kHeaders;
  do {
    const std::string_view part = rest.substr(0, kMaxFrameBytes);
    rest.remove_prefix(part.size());
    uint8_t flags = rest.empty() ? frame_flag::kEndHeaders : uint8_t{0};
    if (end_stream && type == frame_type::kHeaders) flags |= frame_flag::kEndStream;
    AppendFrameHeader(
        {.length = static_cast<uint32_t>(part.size()), .type = type, .flags = flags, .stream = id},
        out.to_server);
    out.to_server.append(part);
    type = frame_type::kContinuation;
  } while (!rest.empty());
}

void ConnectionFilter::ReturnCredit(Output& out) {
  if (swallowed_ < kCreditPart || failed_) return;
  AppendWindowUpdate(0, std::exchange(swallowed_, 0), Injected(out));
}

absl::Status ConnectionFilter::FullError(ConnectionBudget::Result result) const {
  const bool own = result == ConnectionBudget::Result::kConnectionFull;
  const std::string_view flag = own ? "max-connection-bytes" : "max-transport-bytes";
  return MakeError(
      absl::StatusCode::kResourceExhausted,
      absl::StrCat("the calls and unread bodies of ", own ? "this connection" : "all connections",
                   " would take more than --", Absl(flag),
                   " allows; wait for open calls to end, or use another worker"),
      {.reason = "TRANSPORT_FULL", .subject = std::string(flag), .retry_after = absl::Seconds(1)});
}

void ConnectionFilter::CountRefusal(const absl::Status& status) {
  if (options_.on_refused) options_.on_refused(GetErrorDetails(status).reason);
}

void ConnectionFilter::Answer(uint32_t id, bool client_ended, const absl::Status& status,
                              Output& out) {
  CountRefusal(status);
  block_.clear();
  // The first block begins with a table size update to 0, as the server's first block does: a
  // decoder whose table size was reduced must read it before anything else.
  if (!std::exchange(table_reset_sent_, true)) AppendHpackInteger(0, 5, 0x20, block_);
  // The field `:status: 200` of the static table.
  block_.push_back(static_cast<char>(0x88));
  AppendLiteral("content-type", "application/grpc", block_);
  AppendLiteral("grpc-status", absl::StrCat(static_cast<int>(status.code())), block_);
  AppendLiteral("grpc-message", PercentEncode({status.message().data(), status.message().size()}),
                block_);
  if (status.code() == absl::StatusCode::kUnimplemented) {
    AppendLiteral("grpc-accept-encoding", "identity", block_);
  }
  if (options_.encode_details) {
    AppendLiteral("grpc-status-details-bin", UnpaddedBase64(options_.encode_details(status)),
                  block_);
  }
  std::string& to_client = Injected(out);
  AppendFrameHeader({.length = static_cast<uint32_t>(block_.size()),
                     .type = frame_type::kHeaders,
                     .flags = frame_flag::kEndHeaders | frame_flag::kEndStream,
                     .stream = id},
                    to_client);
  to_client.append(block_);
  if (!client_ended) AppendRstStream(id, Http2Error::kNoError, to_client);
}

void ConnectionFilter::RefuseOpen(uint32_t id, Stream& stream, absl::Status status, Output& out) {
  stream.refusing = true;
  AppendRstStream(id, Http2Error::kCancel, InjectedToServer(out));
  refusals_.push_back({.stream = id, .status = std::move(status), .fence = fences_sent_ + 1});
  if (fences_sent_ == fences_passed_) SendFence(out);
}

void ConnectionFilter::SendFence(Output& out) {
  // The server acknowledges SETTINGS in order, after the frames that it wrote before.
  AppendFrameHeader({.type = frame_type::kSettings}, InjectedToServer(out));
  unacked_settings_.push_back(true);
  ++fences_sent_;
}

void ConnectionFilter::OnServerFence(absl::Time now, Output& out) {
  ++fences_passed_;
  std::vector<Refusal> later;
  for (Refusal& refusal : std::exchange(refusals_, {})) {
    if (refusal.fence > fences_passed_) {
      later.push_back(std::move(refusal));
      continue;
    }
    const auto found = streams_.find(refusal.stream);
    // The client or the server may have ended the call meanwhile.
    if (found == streams_.end()) continue;
    if (found->second.server_began) {
      CountRefusal(refusal.status);
      AppendRstStream(refusal.stream, Http2Error::kEnhanceYourCalm, Injected(out));
    } else {
      Answer(refusal.stream, found->second.client_ended, refusal.status, out);
    }
    CloseStream(refusal.stream, /*linger=*/true, now);
  }
  refusals_ = std::move(later);
  if (!refusals_.empty()) SendFence(out);
  Tick(now, out);
}

void ConnectionFilter::CloseStream(uint32_t id, bool linger, absl::Time now) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  const int64_t charge = found->second.call_charge + found->second.body_charge;
  if (!linger && progress_ != nullptr) ++progress_->ended;
  if (linger) {
    lingering_.push_back({.until = now + options_.reset_linger,
                          .fence = progress_ == nullptr ? 0 : progress_->Fence(),
                          .own_fence = 0,
                          .charge = charge,
                          .counted = progress_ != nullptr});
    if (progress_ != nullptr) ++progress_->unconfirmed;
  } else if (progress_ != nullptr && progress_->ManyEnded()) {
    ended_.push_back({.until = now + options_.reset_linger,
                      .fence = progress_->Fence(),
                      .own_fence = 0,
                      .charge = charge,
                      .counted = false});
    ++progress_->kept;
  } else {
    budget_.Release(charge);
  }
  if (found->second.in_use) --calls_in_use_;
  streams_.erase(found);
}

void ConnectionFilter::FromServer(std::span<const uint8_t> bytes, absl::Time now, Output& out) {
  Tick(now, out);
  while (!bytes.empty() || (in_server_frame_ && server_payload_left_ == 0)) {
    if (!in_server_frame_) {
      const size_t take = std::min(bytes.size(), kFrameHeaderBytes - server_header_filled_);
      std::memcpy(server_header_bytes_.data() + server_header_filled_, bytes.data(), take);
      server_header_filled_ += take;
      bytes = bytes.subspan(take);
      if (server_header_filled_ < kFrameHeaderBytes) return;
      server_header_filled_ = 0;
      server_frame_ = ParseFrameHeader(server_header_bytes_.data());
      in_server_frame_ = true;
      server_payload_left_ = server_frame_.length;
      BeginServerFrame(out);
      continue;
    }
    const std::span<const uint8_t> part =
        bytes.first(std::min<size_t>(bytes.size(), server_payload_left_));
    bytes = bytes.subspan(part.size());
    server_payload_left_ -= static_cast<uint32_t>(part.size());
    if (collect_server_) {
      server_collected_.append(Text(part));
    } else if (!swallow_server_) {
      out.to_client.append(Text(part));
    }
    if (server_payload_left_ == 0) {
      in_server_frame_ = false;
      EndServerFrame(now, out);
    }
  }
  ReturnServerCredit(out);
}

bool ConnectionFilter::IsOver(const FrameHeader& frame) const {
  const auto found = streams_.find(frame.stream);
  const bool over = found == streams_.end() ||
                    // The filter answers once the server can send nothing more.
                    (found->second.refusing && !found->second.server_began);
  switch (frame.type) {
    case frame_type::kHeaders:
      // The client must get the first block of any call, because it has the table size update.
      return over && table_reset_sent_;
    case frame_type::kContinuation:
      return server_block_over_;
    case frame_type::kData:
    case frame_type::kRstStream:
      return over;
    default:
      return false;
  }
}

void ConnectionFilter::ReturnServerCredit(Output& out) {
  if (server_swallowed_ == 0) return;
  AppendWindowUpdate(0, std::exchange(server_swallowed_, 0), InjectedToServer(out));
}

void ConnectionFilter::BeginServerFrame(Output& out) {
  const bool ack = (server_frame_.flags & frame_flag::kAck) != 0;
  const bool settings = server_frame_.type == frame_type::kSettings;
  collect_server_ = settings && !ack;
  swallow_server_ = settings && ack && !unacked_settings_.empty() && unacked_settings_.front();
  if (server_frame_.stream != 0 && IsOver(server_frame_)) {
    swallow_server_ = true;
    if (server_frame_.type == frame_type::kData) server_swallowed_ += server_frame_.length;
  }
  if (server_frame_.type == frame_type::kHeaders) server_block_over_ = swallow_server_;
  server_collected_.clear();
  if (collect_server_ || swallow_server_) return;
  server_at_boundary_ = false;
  AppendFrameHeader(server_frame_, out.to_client);
  if (server_frame_.type == frame_type::kHeaders) {
    server_in_block_ = true;
    server_block_end_stream_ = (server_frame_.flags & frame_flag::kEndStream) != 0;
    table_reset_sent_ = true;
  }
}

void ConnectionFilter::EndServerFrame(absl::Time now, Output& out) {
  const uint32_t id = server_frame_.stream;
  const uint8_t flags = server_frame_.flags;
  bool ends_stream = false;
  bool fence = false;
  switch (server_frame_.type) {
    case frame_type::kSettings:
      if (collect_server_) {
        RewriteSettings(out);
      } else if (!unacked_settings_.empty()) {
        fence = unacked_settings_.front();
        unacked_settings_.pop_front();
        if (!fence) --unanswered_;
      }
      break;
    case frame_type::kPing:
      if ((flags & frame_flag::kAck) != 0 && unanswered_ > 0) --unanswered_;
      break;
    case frame_type::kHeaders:
    case frame_type::kContinuation:
      if ((flags & frame_flag::kEndHeaders) != 0) {
        server_in_block_ = false;
        ends_stream = server_block_end_stream_;
      }
      break;
    case frame_type::kData:
      ends_stream = (flags & frame_flag::kEndStream) != 0;
      break;
    default:
      break;
  }
  const auto found = swallow_server_ ? streams_.end() : streams_.find(id);
  if (found != streams_.end()) {
    Stream& stream = found->second;
    if (server_frame_.type == frame_type::kHeaders || server_frame_.type == frame_type::kData) {
      stream.server_began = true;
      ReleaseRead(stream);
    }
    // A server that ends its side first resets the stream after that.
    if (ends_stream) stream.server_ended = true;
    if (server_frame_.type == frame_type::kRstStream || (ends_stream && stream.client_ended)) {
      CloseStream(id, /*linger=*/stream.refusing, now);
    }
  }
  server_at_boundary_ = !server_in_block_;
  if (server_at_boundary_ && !pending_.empty()) {
    out.to_client.append(pending_);
    pending_.clear();
    if (pending_.capacity() > kMaxFrameBytes) pending_.shrink_to_fit();
  }
  if (fence) OnServerFence(now, out);
}

void ConnectionFilter::ReleaseRead(Stream& stream) {
  // The server has read a message, and holds the unfinished one. It may have left whole messages
  // behind the first one unread.
  const int64_t unread = stream.messages > 1 ? kUnreadCharge : 0;
  const int64_t kept = std::min(stream.body_charge, std::max(stream.unfinished, unread));
  budget_.Release(stream.body_charge - kept);
  stream.body_charge = kept;
}

void ConnectionFilter::RewriteSettings(Output& out) {
  const auto limit_of = [&](uint16_t id) -> uint32_t {
    switch (id) {
      case setting::kMaxConcurrentStreams:
        return options_.max_streams;
      case setting::kMaxFrameSize:
        return kMaxFrameBytes;
      case setting::kMaxHeaderListSize:
        return static_cast<uint32_t>(options_.max_header_list_bytes);
      default:
        return UINT32_MAX;
    }
  };
  std::string entries;
  const auto append = [&](uint16_t id, uint32_t value) { AppendSetting(id, value, entries); };
  const auto* entry = reinterpret_cast<const uint8_t*>(server_collected_.data());
  for (size_t left = server_collected_.size(); left >= kSettingBytes;
       left -= kSettingBytes, entry += kSettingBytes) {
    const uint16_t id = static_cast<uint16_t>(entry[0] << 8 | entry[1]);
    append(id, std::min(ReadBigEndian32(entry + 2), limit_of(id)));
  }
  if (!std::exchange(server_settings_seen_, true)) {
    append(setting::kMaxConcurrentStreams, limit_of(setting::kMaxConcurrentStreams));
    append(setting::kMaxHeaderListSize, limit_of(setting::kMaxHeaderListSize));
  }
  AppendFrameHeader(
      {.length = static_cast<uint32_t>(entries.size()), .type = frame_type::kSettings},
      out.to_client);
  out.to_client.append(entries);
}

}  // namespace orcd::guard
