// A few HTTP calls to a server that need not be trusted.
#ifndef ORCD_WORKER_HTTP_CLIENT_H_
#define ORCD_WORKER_HTTP_CLIENT_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/call_cancellation.h"

namespace orcd {

struct HttpRequest {
  // GET, POST or DELETE.
  std::string method = "GET";
  // http:// or https://.
  std::string url;
  // Sent as application/json; empty: none.
  std::string body = {};
  // Sent as `Authorization: Bearer …`; empty: none.
  std::string bearer_token = {};
};

struct HttpResponse {
  int status = 0;
  std::string body;
};

// Follows no redirect, heeds no proxy of the environment, keeps no cookie and no connection. Any
// thread may call; each call stands for itself.
class HttpClient {
 public:
  struct Options {
    // PEM. The authorities that an https server's certificate has; empty: the system's.
    std::string ca = {};
    // Certificate and key that an https server is shown; both or neither.
    std::string certificate = {};
    std::string key = {};
    // A longer body ends the call.
    size_t max_body_bytes = size_t{1} << 20;
  };

  explicit HttpClient(Options options);

  // Any status is a response. Otherwise kDeadlineExceeded after `timeout`, kCancelled once `cancel`
  // is, kResourceExhausted where the answer is too long; with what went wrong kUnavailable where
  // nothing of the request was sent, and kUnknown where the server may have it.
  absl::StatusOr<HttpResponse> Call(const HttpRequest& request, absl::Duration timeout,
                                    CallCancellation& cancel) const;

 private:
  const Options options_;
};

}  // namespace orcd

#endif  // ORCD_WORKER_HTTP_CLIENT_H_
