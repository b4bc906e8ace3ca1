#include "worker/observe/metrics_endpoint.h"

#include <microhttpd.h>
#include <sys/socket.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "prometheus/text_serializer.h"
#include "runtime/base/error.h"
#include "worker/security/guard/listen_sockets.h"

namespace orcd {
namespace {

// Prometheus' text format, version 0.0.4.
constexpr char kContentType[] = "text/plain; version=0.0.4; charset=utf-8";

using Body = std::function<std::string()>;

std::string Serialize(const Metrics& metrics, const v1::WorkerStatus& status) {
  std::vector<prometheus::MetricFamily> families = StatusMetrics(status);
  std::vector<prometheus::MetricFamily> counted = metrics.Collect();
  std::move(counted.begin(), counted.end(), std::back_inserter(families));
  return prometheus::TextSerializer().Serialize(families);
}

MHD_Result Answer(MHD_Connection* connection, unsigned int code, std::string body,
                  std::initializer_list<std::pair<const char*, const char*>> headers) {
  MHD_Response* const response =
      MHD_create_response_from_buffer(body.size(), body.data(), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return MHD_NO;
  for (const auto& [name, value] : headers) MHD_add_response_header(response, name, value);
  const MHD_Result queued = MHD_queue_response(connection, code, response);
  MHD_destroy_response(response);
  return queued;
}

// Called once a request's headers have arrived; does not wait for a body.
MHD_Result Handle(void* body, MHD_Connection* connection, const char* path, const char* method,
                  const char*, const char*, size_t*, void**) {
  constexpr std::pair<const char*, const char*> kPlain = {"Content-Type", "text/plain"};
  if (std::string_view(path) != "/metrics") {
    return Answer(connection, MHD_HTTP_NOT_FOUND, "only /metrics is here\n", {kPlain});
  }
  if (std::string_view(method) != "GET" && std::string_view(method) != "HEAD") {
    return Answer(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD are answered\n",
                  {kPlain, {"Allow", "GET, HEAD"}});
  }
  return Answer(connection, MHD_HTTP_OK, (*static_cast<const Body*>(body))(),
                {{"Content-Type", kContentType}});
}

}  // namespace

// Owns the server of one listening socket. Its own thread alone accepts, answers and closes.
class MetricsEndpoint::HttpServer {
 public:
  explicit HttpServer(Body body) : body_(std::move(body)) {}
  ~HttpServer() {
    if (daemon_ != nullptr) MHD_stop_daemon(daemon_);
  }
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Must be called once. Returns false if there are no threads or descriptors for it.
  bool Start(guard::Descriptor listener) {
    daemon_ = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD, 0, nullptr, nullptr, &Handle, &body_,
        MHD_OPTION_LISTEN_SOCKET, listener.get(),
        // Connections that are being closed may still be open.
        MHD_OPTION_CONNECTION_LIMIT, 2 * kMaxConnections, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        kConnectionBytes, MHD_OPTION_CONNECTION_TIMEOUT, kIdleSeconds, MHD_OPTION_NOTIFY_CONNECTION,
        &HttpServer::OnConnection, this, MHD_OPTION_END);
    if (daemon_ == nullptr) return false;
    // The library closes the socket.
    listener.Release();
    return true;
  }

 private:
  static void OnConnection(void* self, MHD_Connection* connection, void**,
                           MHD_ConnectionNotificationCode code) {
    std::vector<MHD_Connection*>& open = static_cast<HttpServer*>(self)->open_;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
      if (open.size() == kMaxConnections) {
        const MHD_ConnectionInfo* const oldest =
            MHD_get_connection_info(open.front(), MHD_CONNECTION_INFO_CONNECTION_FD);
        // The server closes the connection when it sees the end of the stream.
        if (oldest != nullptr) shutdown(oldest->connect_fd, SHUT_RDWR);
        open.erase(open.begin());
      }
      open.push_back(connection);
    } else {
      open.erase(std::remove(open.begin(), open.end(), connection), open.end());
    }
  }

  Body body_;
  // Oldest first. Used by the server's thread alone.
  std::vector<MHD_Connection*> open_;
  MHD_Daemon* daemon_ = nullptr;
};

MetricsEndpoint::MetricsEndpoint() = default;
MetricsEndpoint::~MetricsEndpoint() = default;

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    const std::string& listen, const Metrics& metrics, std::function<v1::WorkerStatus()> status) {
  std::optional<guard::ListenSockets> listening = guard::Listen(listen);
  if (!listening) {
    return MakeError(absl::StatusCode::kUnavailable,
                     absl::StrCat("cannot listen on ", listen,
                                  ": the address is not this machine's or the port is taken; "
                                  "change --metrics-listen"),
                     {.reason = "CANNOT_LISTEN", .subject = listen});
  }
  std::unique_ptr<MetricsEndpoint> endpoint(new MetricsEndpoint);
  const Body body = [&metrics, status = std::move(status)] { return Serialize(metrics, status()); };
  for (guard::Descriptor& socket : listening->sockets) {
    endpoint->servers_.push_back(std::make_unique<HttpServer>(body));
    if (!endpoint->servers_.back()->Start(std::move(socket))) {
      return MakeError(absl::StatusCode::kUnavailable,
                       absl::StrCat("cannot serve on ", listen,
                                    ": there are no descriptors or threads left; raise the "
                                    "process's limits"),
                       {.reason = "CANNOT_LISTEN", .subject = listen});
    }
  }
  const std::string host = listen.substr(0, listen.rfind(':'));
  endpoint->address_ = absl::StrCat(host, ":", listening->port);
  return endpoint;
}

}  // namespace orcd
