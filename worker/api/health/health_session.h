// grpc.health.v1 on one HTTP/2 connection, as bytes in and bytes out.
// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
#ifndef ORCD_WORKER_API_HEALTH_HEALTH_SESSION_H_
#define ORCD_WORKER_API_HEALTH_HEALTH_SESSION_H_

#include <nghttp2/nghttp2.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "grpcpp/support/status.h"
#include "worker/api/health/health_service.h"
#include "worker/security/guard/local_server.h"

namespace orcd {

// Answers Check and Watch from a HealthService, and every other call with UNIMPLEMENTED. libnghttp2
// implements HTTP/2; the connection guard in front bounds the resources that a client can take. One
// thread may call.
class HealthSession final : public guard::LocalServer {
 public:
  // Calls open at once.
  static constexpr uint32_t kMaxCalls = 100;

  // `health` must outlive the session.
  explicit HealthSession(const HealthService& health);
  ~HealthSession() override;

  HealthSession(const HealthSession&) = delete;
  HealthSession& operator=(const HealthSession&) = delete;

  bool Receive(std::span<const uint8_t> bytes) override;
  bool Send(size_t most, std::string& out) override;
  // Queues a message for each watcher whose status has changed.
  void OnTick() override;

 private:
  struct Call {
    std::string path;
    // The request's bytes received so far.
    std::string body;
    bool is_watch = false;
    // For a Watch: the name, and the last status that was queued.
    std::string service;
    std::optional<HealthService::ServingStatus> queued_status;
    // Message bytes to send, and the final status after them.
    std::string out;
    std::optional<grpc::Status> end;
  };

  // Callbacks of nghttp2; `self` is the session.
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

  // Call when the request is complete.
  void Begin(int32_t stream, Call& call);
  // Queues the current status for a watcher; returns false if there is nothing new.
  bool Queue(Call& call);

  const HealthService& health_;
  nghttp2_session* session_ = nullptr;
  std::map<int32_t, Call> calls_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_API_HEALTH_HEALTH_SESSION_H_
