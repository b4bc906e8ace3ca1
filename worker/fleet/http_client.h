// A small HTTP client for servers that need not be trusted.
#ifndef ORCD_WORKER_FLEET_HTTP_CLIENT_H_
#define ORCD_WORKER_FLEET_HTTP_CLIENT_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/stream/call_cancellation.h"

namespace orcd {

struct HttpRequest {
  // GET, POST or DELETE.
  std::string method = "GET";
  // http:// or https://.
  std::string url;
  // Sent as application/json; empty: no body.
  std::string body = {};
  // Sent as `Authorization: Bearer …`; empty: no such header.
  std::string bearer_token = {};
};

struct HttpResponse {
  int status = 0;
  std::string body;
};

// Makes independent calls: follows no redirect, ignores the proxy variables of the environment,
// keeps no cookie and no connection. Any thread may call.
class HttpClient {
 public:
  struct Options {
    // PEM. Authorities that may have signed an https server's certificate; empty: the system's.
    std::string ca = {};
    // Certificate and key shown to an https server; set both or neither.
    std::string certificate = {};
    std::string key = {};
    // A longer body ends the call with an error.
    size_t max_body_bytes = size_t{1} << 20;
  };

  explicit HttpClient(Options options);

  // Returns a response whatever its HTTP status. Otherwise fails with kDeadlineExceeded after
  // `timeout`, kCancelled once `cancel` is cancelled, kResourceExhausted if the answer is too long,
  // kUnavailable with the cause if nothing of the request was sent, or kUnknown with the cause if
  // the server may have received it.
  absl::StatusOr<HttpResponse> Call(const HttpRequest& request, absl::Duration timeout,
                                    CallCancellation& cancel) const;

 private:
  const Options options_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_FLEET_HTTP_CLIENT_H_
