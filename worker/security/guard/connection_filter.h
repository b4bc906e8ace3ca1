// The HTTP/2 rules that one connection must follow, as a function from bytes to bytes.
#ifndef ORCD_WORKER_SECURITY_GUARD_CONNECTION_FILTER_H_
#define ORCD_WORKER_SECURITY_GUARD_CONNECTION_FILTER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/security/guard/header_codec.h"
#include "worker/security/guard/http2_frame.h"
#include "worker/security/guard/server_probe.h"
#include "worker/security/guard/transport_budget.h"

namespace orcd::guard {

// Header that carries one name of the client's verified certificate. It occurs once for each name:
// the common name, then the alternative names. The filter drops client headers that begin with
// kPeerPrefix.
inline constexpr std::string_view kPeerPrefix = "orcd-peer-";
inline constexpr std::string_view kPeerNameHeader = "orcd-peer-name-bin";

// The part of a call that is known before its body.
struct CallHeaders {
  // The method's path, such as `/orcd.v1.Worker/Health`.
  std::string_view path;
  // The first header `authorization`. Empty if there is none.
  std::string_view authorization;
};

struct FilterOptions {
  // Largest header list of a call: the sum of name + value + 32 bytes.
  size_t max_header_list_bytes = 16 << 10;
  // Largest number of calls open at once.
  uint32_t max_streams = 640;
  // Bytes charged for a connection, and for each open call in addition to its headers and body. A
  // waiting call takes 12 to 20 KiB, one that is being refused 40 KiB. If calls come and go as fast
  // as they can, the gaps in the allocator's memory take as much again.
  int64_t connection_charge = 64 << 10;
  int64_t stream_charge = 96 << 10;
  // Largest sum of the charges of one connection.
  int64_t max_connection_bytes = int64_t{64} << 20;
  // Time that gRPC may need to free a call that the client has reset. Used only if no probe can
  // tell.
  absl::Duration reset_linger = absl::Seconds(1);
  // Called with a call's headers, before its body is read. A call for which it does not return OK
  // is refused with the returned status. Any thread. Null: every call may go on.
  std::function<absl::Status(const CallHeaders&, const std::vector<std::string>& peer_names)> admit;
  // Returns the bytes of `grpc-status-details-bin` for a refusal. Any thread. Null: no details.
  std::function<std::string(const absl::Status&)> encode_details;
  // Called for each refused call with the error's reason. Any thread. May be null.
  std::function<void(std::string_view reason)> on_refused;
};

// Stands between a client and gRPC on one connection. Holds state for each open call; touches no
// socket.
//
// Bytes from the client are checked against the rules of HTTP/2: preface, frame sizes, stream ids.
// Header blocks are decoded and encoded again, so that gRPC never sees a refused call. A call that
// breaks a rule is answered here and ends alone; a frame that breaks HTTP/2 ends the connection.
// Bodies are relayed as they come and charged to the budget until the server answers on their
// stream.
//
// Frames from the server pass unchanged, except for its SETTINGS, which get the limits enforced
// here, and for frames of calls that are over, which are dropped. The server gets a header table
// size of 0 (RFC 7541), so its header blocks refer to no table and one of them may be dropped.
//
// One thread at a time.
class ConnectionFilter {
 public:
  // Bytes to send on. The filter appends to them.
  struct Output {
    std::string to_server;
    std::string to_client;
  };

  // `options`, `total` and `progress` must outlive the filter. `progress` tells when gRPC has freed
  // reset calls; if it is null, reset_linger decides.
  ConnectionFilter(const FilterOptions& options, TransportBudget& total, ServerProgress* progress);
  ~ConnectionFilter();
  ConnectionFilter(const ConnectionFilter&) = delete;
  ConnectionFilter& operator=(const ConnectionFilter&) = delete;

  // Charges the connection itself. False if there is no room for it.
  bool ChargeConnection();
  // Sets the names of the client's verified certificate. Call before the client's first byte.
  void SetPeerNames(std::vector<std::string> names);
  // Ends the connection to make room. The GOAWAY tells the client to use another connection.
  void Dismiss(Output& out);

  // Processes bytes of the client and returns their number. The number is smaller than bytes.size()
  // once accepting() is false or failed() is true; the rest is for the next call.
  size_t FromClient(std::span<const uint8_t> bytes, absl::Time now, Output& out);
  // Processes all of the given bytes of the server.
  void FromServer(std::span<const uint8_t> bytes, absl::Time now, Output& out);
  // Releases charges that have lingered long enough. Call every fraction of a second, and when the
  // progress has changed.
  void Tick(absl::Time now, Output& out);

  // True if the client may be read. False while the server owes it too many acknowledgements, or
  // has not yet freed enough of the calls that the client has reset. Tick may make it true again.
  bool accepting() const {
    return !failed_ && unanswered_ < kMaxUnanswered && pending_.size() < kMaxInjected &&
           lingering_.size() < MaxLingering() && ended_.size() < kMaxEnded;
  }
  // True if calls that are over may still hold memory of the server.
  bool lingers() const { return !lingering_.empty() || !ended_.empty(); }
  // True once the client has sent its preface and its first SETTINGS.
  bool established() const { return established_; }
  // True if the connection must end. A GOAWAY has been appended if one could be.
  bool failed() const { return failed_; }
  // True if the connection was ended to make room, without a fault of the client.
  bool dismissed() const { return dismissed_; }
  size_t open_calls() const { return streams_.size(); }
  // Open calls that count as use of the connection: a whole message has arrived for them, and they
  // are not calls of gRPC's own services, which anybody may call.
  size_t calls_in_use() const { return calls_in_use_; }
  // Bytes charged now, and the peak.
  const ConnectionBudget& budget() const { return budget_; }
  // Leaves the charge in the total for the caller to release.
  int64_t DetachCharge() { return budget_.Detach(); }

 private:
  // Number of answers that the server may owe. At this number the filter stops reading the client.
  static constexpr int kMaxUnanswered = 32;
  // Charges of ended calls that may be kept. At this number the filter stops reading the client, so
  // that what ended calls still hold delays new ones and refuses none.
  static constexpr size_t kMaxEnded = 32;
  // Bytes of the filter's own answers that may wait.
  static constexpr size_t kMaxInjected = 64 << 10;

  struct Stream {
    // Charge for the call and its headers, and charge for its body.
    int64_t call_charge = 0;
    int64_t body_charge = 0;
    // of_grpc: the call is for one of gRPC's own services. in_use: it counts in calls_in_use_.
    bool of_grpc = false;
    bool in_use = false;
    bool client_ended = false;
    bool server_began = false;
    bool server_ended = false;
    // The server was sent a RST_STREAM. The client gets its answer after the next fence.
    bool refusing = false;
    // The message that the body is in: bytes read of its prefix, and bytes left of its content.
    uint8_t prefix_bytes = 0;
    uint32_t message_left = 0;
    // Bytes of the unfinished message, and number of finished messages, counted only up to two.
    int64_t unfinished = 0;
    int messages = 0;
  };
  struct Refusal {
    uint32_t stream;
    absl::Status status;
    // Number of the fence that the server must have passed.
    uint64_t fence;
  };
  struct Linger {
    absl::Time until;
    // A fence of progress_ and, once that is passed, one of this connection: gRPC frees a call's
    // part of the connection when it processes the connection itself.
    uint64_t fence;
    uint64_t own_fence;
    int64_t charge;
    // True if progress_ counts the call as unconfirmed.
    bool counted;
  };
  // Use of the payload of the client's frame.
  enum class Payload { kRelay, kSwallow, kCollect, kPadLength, kHeaderPrefix, kHeaderBlock };

  // The client's side.
  bool TakePreface(std::span<const uint8_t>& bytes, Output& out);
  void BeginFrame(Output& out);
  void BeginData(Output& out);
  // `payload` is the number of bytes after the pad length field, if the frame has one, without the
  // padding.
  void RelayData(uint32_t payload, Output& out);
  void BeginHeaders(Output& out);
  void BeginContinuation(Output& out);
  void CountBlock(uint32_t bytes, Output& out);
  // Consumes the available bytes of the payload.
  void TakePayload(std::span<const uint8_t>& bytes, Output& out);
  void EndFrame(absl::Time now, Output& out);
  void EndClientSide(uint32_t id, absl::Time now);
  void EndClientSettings(Output& out);
  void EndHeaderBlock(absl::Time now, Output& out);
  void OpenCall(uint32_t id, Output& out);
  void ForwardTrailers(uint32_t id, Stream& stream, Output& out);
  void ForwardHeaders(uint32_t id, bool end_stream, bool with_peer, Output& out);
  void TrackMessages(Stream& stream, std::span<const uint8_t> body);
  void ReturnCredit(Output& out);

  // The server's side.
  void BeginServerFrame(Output& out);
  // True if the client must not see the frame: its call is over, or the filter answers the call
  // instead of the server.
  bool IsOver(const FrameHeader& frame) const;
  void ReturnServerCredit(Output& out);
  void EndServerFrame(absl::Time now, Output& out);
  void RewriteSettings(Output& out);
  void OnServerFence(absl::Time now, Output& out);
  // Releases the charge for the bytes that the server has read, now that it answers.
  void ReleaseRead(Stream& stream);

  // Answers a call that gRPC has not seen, or has ended.
  void Answer(uint32_t id, bool client_ended, const absl::Status& status, Output& out);
  // Ends a call that gRPC has. gRPC gets a RST_STREAM now, the client its answer once gRPC cannot
  // send on the call any more.
  void RefuseOpen(uint32_t id, Stream& stream, absl::Status status, Output& out);
  void SendFence(Output& out);
  size_t MaxLingering() const;
  void CountRefusal(const absl::Status& status);
  absl::Status FullError(ConnectionBudget::Result result) const;
  // Target of the filter's own frames to the client: the output, or pending_ until the end of the
  // server's frame.
  std::string& Injected(Output& out) { return server_at_boundary_ ? out.to_client : pending_; }
  // The same towards the server: the filter inserts nothing within a frame that is being relayed.
  bool relaying() const { return in_frame_ && payload_ == Payload::kRelay && payload_left_ > 0; }
  std::string& InjectedToServer(Output& out) {
    return relaying() ? server_pending_ : out.to_server;
  }
  void CloseStream(uint32_t id, bool linger, absl::Time now);
  void Fail(Http2Error error, std::string_view why, Output& out);

  const FilterOptions& options_;
  std::vector<std::string> peer_names_;
  // Header values: a zero byte, then the name.
  std::vector<std::string> peer_values_;
  // Bytes of those headers, as HTTP/2 counts.
  size_t peer_bytes_ = 0;
  ServerProgress* const progress_;
  ConnectionBudget budget_;
  std::deque<Linger> lingering_;
  // Calls that the server has ended, kept here if many of them end at a time.
  std::deque<Linger> ended_;
  absl::flat_hash_map<uint32_t, Stream> streams_;
  size_t calls_in_use_ = 0;
  bool failed_ = false;
  bool dismissed_ = false;

  // The client's side.
  size_t preface_bytes_ = 0;
  bool established_ = false;
  bool settings_seen_ = false;
  uint32_t last_stream_ = 0;
  std::array<uint8_t, kFrameHeaderBytes> header_bytes_;
  size_t header_filled_ = 0;
  bool in_frame_ = false;
  FrameHeader frame_;
  Payload payload_ = Payload::kSwallow;
  // Bytes of the frame still to come: of the payload, and of the padding after it.
  uint32_t payload_left_ = 0;
  uint32_t padding_left_ = 0;
  // The bytes that kCollect, kPadLength and kHeaderPrefix have read.
  std::string collected_;
  uint32_t collect_bytes_ = 0;
  // The header block that is open until END_HEADERS.
  uint32_t block_stream_ = 0;
  bool block_end_stream_ = false;
  size_t block_bytes_ = 0;
  size_t block_frames_ = 0;
  HeaderDecoder decoder_;
  HeaderEncoder encoder_;
  std::vector<HeaderList::Field> fields_;
  std::string block_;
  // Bytes of DATA that gRPC does not see and whose credit the client has not got back.
  uint32_t swallowed_ = 0;

  // The server's side.
  std::array<uint8_t, kFrameHeaderBytes> server_header_bytes_;
  size_t server_header_filled_ = 0;
  FrameHeader server_frame_;
  bool in_server_frame_ = false;
  uint32_t server_payload_left_ = 0;
  bool collect_server_ = false;
  bool swallow_server_ = false;
  std::string server_collected_;
  bool server_at_boundary_ = true;
  bool server_in_block_ = false;
  bool server_block_end_stream_ = false;
  // True if the frames of the block are dropped.
  bool server_block_over_ = false;
  // True once the client has got a header block, which begins with a table size update to 0.
  bool table_reset_sent_ = false;
  // Bytes of the server's DATA that the client does not see.
  uint32_t server_swallowed_ = 0;
  bool server_settings_seen_ = false;
  // Frames that wait for the end of the server's frame, and of the client's.
  std::string pending_;
  std::string server_pending_;
  // Acknowledgements that the server owes for PINGs and SETTINGS of the client.
  int unanswered_ = 0;
  // Origin of each unacknowledged SETTINGS, in order: true for a fence, false for the client's.
  std::deque<bool> unacked_settings_;
  std::vector<Refusal> refusals_;
  uint64_t fences_sent_ = 0;
  uint64_t fences_passed_ = 0;
};

}  // namespace orcd::guard

#endif  // ORCD_WORKER_SECURITY_GUARD_CONNECTION_FILTER_H_
