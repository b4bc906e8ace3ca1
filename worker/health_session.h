// grpc.health.v1 on one HTTP/2 connection, as bytes in and bytes out.
// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
#ifndef ORCD_WORKER_HEALTH_SESSION_H_
#define ORCD_WORKER_HEALTH_SESSION_H_

#include <nghttp2/nghttp2.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "grpcpp/support/status.h"
#include "worker/health_service.h"

namespace orcd {

// Answers Check and Watch with what a HealthService says, and every other call with UNIMPLEMENTED.
// HTTP/2 is libnghttp2's; what a client can take is bounded by the connection guard before it. One
// thread.
class HealthSession {
 public:
  // `health` must outlive it.
  explicit HealthSession(const HealthService& health);
  ~HealthSession();

  HealthSession(const HealthSession&) = delete;
  HealthSession& operator=(const HealthSession&) = delete;

  // Takes bytes of the client. False: the connection is to be closed.
  bool Receive(std::span<const uint8_t> bytes);
  // Appends what the client is to get, about as much as `most` bytes at a time.
  bool Send(size_t most, std::string& out);
  // Has watchers told of what is new.
  void Look();
  // Whether there is anybody that Look may have news for.
  bool has_watchers() const { return watchers_ > 0; }

 private:
  struct Call {
    std::string path;
    // The request, while it comes.
    std::string body;
    bool is_watch = false;
    // For a Watch: the name, and the status that was told last.
    std::string service;
    std::optional<HealthService::ServingStatus> told;
    // Bytes of messages to be sent, and the end after them.
    std::string out;
    std::optional<grpc::Status> end;
  };

  // Of nghttp2, with the session as `self`.
  static int OnBeginHeaders(nghttp2_session*, const nghttp2_frame* frame, void* self);
  static int OnHeader(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name,
                      size_t name_bytes, const uint8_t* value, size_t value_bytes, uint8_t,
                      void* self);
  static int OnData(nghttp2_session*, uint8_t, int32_t stream, const uint8_t* data, size_t bytes,
                    void* self);
  static int OnFrame(nghttp2_session*, const nghttp2_frame* frame, void* self);
  static int OnClose(nghttp2_session*, int32_t stream, uint32_t, void* self);
  static ssize_t Read(nghttp2_session*, int32_t stream, uint8_t* buffer, size_t bytes,
                      uint32_t* flags, nghttp2_data_source*, void* self);

  // The request is complete.
  void Begin(int32_t stream, Call& call);
  // Tells a watcher what is new; false where there is nothing.
  bool Tell(Call& call);

  const HealthService& health_;
  nghttp2_session* session_ = nullptr;
  std::map<int32_t, Call> calls_;
  size_t watchers_ = 0;
};

}  // namespace orcd

#endif  // ORCD_WORKER_HEALTH_SESSION_H_
