// The HTTP/2 rules that one connection is held to, as bytes in and bytes out.
#ifndef ORCD_WORKER_GUARD_CONNECTION_FILTER_H_
#define ORCD_WORKER_GUARD_CONNECTION_FILTER_H_

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
#include "worker/guard/header_codec.h"
#include "worker/guard/http2_frame.h"
#include "worker/guard/server_probe.h"
#include "worker/guard/transport_budget.h"

namespace orcd::guard {

// Header that carries a name of the client's verified certificate, once a name: the common name,
// then the alternative names. Clients cannot send headers that begin with kPeerPrefix.
inline constexpr std::string_view kPeerPrefix = "orcd-peer-";
inline constexpr std::string_view kPeerNameHeader = "orcd-peer-name-bin";

// What a call shows before its body.
struct CallHeaders {
  // Such as `/orcd.v1.Worker/Health`.
  std::string_view path;
  // The first header `authorization`; empty where there is none.
  std::string_view authorization;
};

struct FilterOptions {
  // Largest header list of a call: the sum of name + value + 32 bytes.
  size_t max_header_list_bytes = 16 << 10;
  // Calls open at once.
  uint32_t max_streams = 640;
  // Bytes charged for a connection, and for each open call beside its headers and body. A call that
  // waits takes 12 to 20 KiB, one that is being refused 40; where calls come and go as fast as they
  // can the allocator's gaps take as much again.
  int64_t connection_charge = 64 << 10;
  int64_t stream_charge = 96 << 10;
  // Largest sum of charges of one connection.
  int64_t max_connection_bytes = int64_t{64} << 20;
  // Time that gRPC may need to free what a client has reset, where nothing else tells.
  absl::Duration reset_linger = absl::Seconds(1);
  // Called with a call's headers, before its body is read; a call that is not OK is refused with
  // that status. Any thread. Null: every call may go on.
  std::function<absl::Status(const CallHeaders&, const std::vector<std::string>& peer_names)> admit;
  // The bytes of `grpc-status-details-bin` for a refusal. Any thread. Null: there are none.
  std::function<std::string(const absl::Status&)> encode_details;
  // Called for each refused call with the error's reason. Any thread. May be null.
  std::function<void(std::string_view reason)> on_refused;
};

// Stands between a client and gRPC on one connection, with state for each open call, and touches
// no socket.
//
// From the client come whole HTTP/2 rules: preface, frame sizes, stream ids. Header blocks are
// decoded and encoded again, so that a refused call is none for gRPC. A call that breaks a rule is
// answered here and ends alone; a frame that breaks HTTP/2 ends the connection. Bodies are relayed
// as they come and charged to the budget until the server answers on their stream.
//
// From the server frames pass as they are, but for its SETTINGS, which say the limits kept here,
// and for frames of calls that are over. Its header blocks refer to no table, for its peer's is
// said to be empty, so that one may be left out.
//
// One thread at a time.
class ConnectionFilter {
 public:
  // Bytes to send on; the filter appends.
  struct Output {
    std::string to_server;
    std::string to_client;
  };

  // `options`, `total` and `progress`, which tells when gRPC has freed reset calls, must outlive
  // the filter. `progress` null: time tells.
  ConnectionFilter(const FilterOptions& options, TransportBudget& total, ServerProgress* progress);
  ~ConnectionFilter();
  ConnectionFilter(const ConnectionFilter&) = delete;
  ConnectionFilter& operator=(const ConnectionFilter&) = delete;

  // Charges the connection itself; false where there is no room for it.
  bool ChargeConnection();
  // The names of the client's verified certificate. Call before its first byte.
  void SetPeerNames(std::vector<std::string> names);
  // Ends the connection as one that is not needed: the client is told to use another.
  void Dismiss(Output& out);

  // Takes bytes of the client and returns how many: fewer than there are once accepting() is false
  // or failed() is true, the rest is for the next call.
  size_t FromClient(std::span<const uint8_t> bytes, absl::Time now, Output& out);
  // Takes bytes of the server, all of them.
  void FromServer(std::span<const uint8_t> bytes, absl::Time now, Output& out);
  // Releases charges that have lingered long enough. Call every fraction of a second, and when the
  // progress has changed.
  void Tick(absl::Time now, Output& out);

  // Whether the client may be read: not where the server owes it answers, or has not got through
  // the calls that the client has reset. Tick may make it true again.
  bool accepting() const {
    return !failed_ && unanswered_ < kMaxUnanswered && pending_.size() < kMaxInjected &&
           lingering_.size() < MaxLingering();
  }
  // Whether calls that are over may hold memory of the server.
  bool lingers() const { return !lingering_.empty() || !ended_.empty(); }
  // The client has sent its preface and its first SETTINGS.
  bool established() const { return established_; }
  // The connection must end; a GOAWAY has been appended where one could be.
  bool failed() const { return failed_; }
  // The client did nothing wrong: it made room.
  bool dismissed() const { return dismissed_; }
  size_t open_calls() const { return streams_.size(); }
  // Open calls that make the connection one in use: a whole message has come for them, and they are
  // not of gRPC's own services, which anybody may call.
  size_t calls_in_use() const { return calls_in_use_; }
  // Bytes charged now, and at most.
  const ConnectionBudget& budget() const { return budget_; }
  // Leaves the charge in the total for the caller to release.
  int64_t DetachCharge() { return budget_.Detach(); }

 private:
  // Answers that the server may owe before its client is not read any more.
  static constexpr int kMaxUnanswered = 32;
  // Bytes of the filter's own answers that may wait.
  static constexpr size_t kMaxInjected = 64 << 10;

  struct Stream {
    // Charged for the call and its headers, and for its body.
    int64_t call_charge = 0;
    int64_t body_charge = 0;
    // Of a service of gRPC's own, and whether it counts in calls_in_use_.
    bool of_grpc = false;
    bool in_use = false;
    bool client_ended = false;
    bool server_began = false;
    bool server_ended = false;
    // The server was told that the call is over; the client hears it after the next fence.
    bool refusing = false;
    // The message that the body is in: bytes of its prefix that were read, bytes that are left.
    uint8_t prefix_bytes = 0;
    uint32_t message_left = 0;
    // Bytes of the message that has not ended, and messages that have; no more than two are
    // counted.
    int64_t unfinished = 0;
    int messages = 0;
  };
  struct Refusal {
    uint32_t stream;
    absl::Status status;
    // The fence that the server must have passed.
    uint64_t fence;
  };
  struct Linger {
    absl::Time until;
    // Of progress_; then, once that is passed, of this connection: gRPC frees a call's part of the
    // connection in the connection's own turn.
    uint64_t fence;
    uint64_t own_fence;
    int64_t charge;
    // Whether progress_ counts it as unconfirmed.
    bool counted;
  };
  // What the payload of the client's frame is for.
  enum class Payload { kRelay, kSwallow, kCollect, kPadLength, kHeaderPrefix, kHeaderBlock };

  // Of the client's side.
  bool TakePreface(std::span<const uint8_t>& bytes, Output& out);
  void BeginFrame(Output& out);
  void BeginData(Output& out);
  // `payload` bytes of the frame come after its padding's length, if it has one.
  void RelayData(uint32_t payload, Output& out);
  void BeginHeaders(Output& out);
  void BeginContinuation(Output& out);
  void CountBlock(uint32_t bytes, Output& out);
  // Takes what there is of the payload.
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

  // Of the server's side.
  void BeginServerFrame(Output& out);
  // Whether the frame is of a call that the client has no answer to expect of, or another.
  bool IsOver(const FrameHeader& frame) const;
  void ReturnServerCredit(Output& out);
  void EndServerFrame(absl::Time now, Output& out);
  void RewriteSettings(Output& out);
  void OnServerFence(absl::Time now, Output& out);
  // Releases what the server has read, now that it answers.
  void ReleaseRead(Stream& stream);

  // Answers a call that gRPC has not seen, or has ended.
  void Answer(uint32_t id, bool client_ended, const absl::Status& status, Output& out);
  // Ends a call that gRPC has: it is told now, the client once gRPC cannot send on it any more.
  void RefuseOpen(uint32_t id, Stream& stream, absl::Status status, Output& out);
  void SendFence(Output& out);
  size_t MaxLingering() const;
  void CountRefusal(const absl::Status& status);
  absl::Status FullError(ConnectionBudget::Result result) const;
  // Where the filter's own frames go: to the client at once, or at the end of the server's frame.
  std::string& Injected(Output& out) { return server_at_boundary_ ? out.to_client : pending_; }
  // The same towards the server: nothing stands within a frame that is relayed as it comes.
  bool relaying() const { return in_frame_ && payload_ == Payload::kRelay && payload_left_ > 0; }
  std::string& InjectedToServer(Output& out) {
    return relaying() ? server_pending_ : out.to_server;
  }
  void CloseStream(uint32_t id, bool linger, absl::Time now);
  void Fail(Http2Error error, std::string_view why, Output& out);

  const FilterOptions& options_;
  std::vector<std::string> peer_names_;
  // As header values: a zero, then the bytes.
  std::vector<std::string> peer_values_;
  // Bytes of those headers, as HTTP/2 counts.
  size_t peer_bytes_ = 0;
  ServerProgress* const progress_;
  ConnectionBudget budget_;
  std::deque<Linger> lingering_;
  // Of calls that the server has ended, where there are many at a time.
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
  // What kCollect, kPadLength and kHeaderPrefix have read.
  std::string collected_;
  uint32_t collect_bytes_ = 0;
  // The block that is open until END_HEADERS.
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
  // The frames of the block are left out.
  bool server_block_over_ = false;
  // The client has had a block, which said that the server's encoder has no table.
  bool table_told_ = false;
  // Bytes of the server's DATA that the client does not see.
  uint32_t server_swallowed_ = 0;
  bool server_settings_seen_ = false;
  // Wait for the end of the server's frame, and of the client's.
  std::string pending_;
  std::string server_pending_;
  // Acknowledgements that the server owes: PINGs and SETTINGS of the client.
  int unanswered_ = 0;
  // Whose SETTINGS those are, in their order: true for a fence.
  std::deque<bool> settings_owed_;
  std::vector<Refusal> refusals_;
  uint64_t fences_sent_ = 0;
  uint64_t fences_passed_ = 0;
};

}  // namespace orcd::guard

#endif  // ORCD_WORKER_GUARD_CONNECTION_FILTER_H_
