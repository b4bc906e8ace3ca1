#include "worker/fleet/http_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/steady_time.h"
#include "worker/base/version.h"

namespace orcd {
namespace {

// Limit for all header lines of a response together.
constexpr size_t kMaxHeaderBytes = 64 << 10;
// Longest time until a cancellation is noticed if no wakeup announced it.
constexpr int kPollMs = 1000;

// libcurl counts these calls; the first must be over before a thread makes another.
void InitLibrary() {
  static const CURLcode initialized = curl_global_init(CURL_GLOBAL_DEFAULT);
  static_cast<void>(initialized);
}

struct EasyDeleter {
  void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
};
struct MultiDeleter {
  void operator()(CURLM* multi) const { curl_multi_cleanup(multi); }
};
struct ListDeleter {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using Easy = std::unique_ptr<CURL, EasyDeleter>;
using Multi = std::unique_ptr<CURLM, MultiDeleter>;
using HeaderList = std::unique_ptr<curl_slist, ListDeleter>;

// The response received so far, with its limits.
struct Incoming {
  std::string body;
  size_t max_body_bytes = 0;
  size_t header_bytes = 0;
  bool too_long = false;
};

size_t TakeBody(const char* data, size_t, size_t size, void* user) {
  auto& incoming = *static_cast<Incoming*>(user);
  if (size > incoming.max_body_bytes - incoming.body.size()) {
    incoming.too_long = true;
    return 0;
  }
  incoming.body.append(data, size);
  return size;
}

size_t TakeHeader(const char*, size_t, size_t size, void* user) {
  auto& incoming = *static_cast<Incoming*>(user);
  incoming.header_bytes += size;
  incoming.too_long = incoming.too_long || incoming.header_bytes > kMaxHeaderBytes;
  return incoming.too_long ? 0 : size;
}

void AddHeader(HeaderList& list, const std::string& line) {
  curl_slist* longer = curl_slist_append(list.get(), line.c_str());
  if (longer == nullptr) return;
  static_cast<void>(list.release());
  list.reset(longer);
}

HeaderList HeadersOf(const HttpRequest& request) {
  HeaderList headers;
  // Otherwise libcurl waits a second for the server's consent to send a longer body.
  AddHeader(headers, "Expect:");
  AddHeader(headers, "Accept: application/json");
  if (!request.body.empty()) AddHeader(headers, "Content-Type: application/json");
  if (!request.bearer_token.empty()) {
    AddHeader(headers, absl::StrCat("Authorization: Bearer ", request.bearer_token));
  }
  return headers;
}

void SetRequest(CURL* easy, const HttpRequest& request, const curl_slist* headers) {
  curl_easy_setopt(easy, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});
  curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(easy, CURLOPT_PROXY, "");
  curl_easy_setopt(easy, CURLOPT_USERAGENT,
                   absl::StrCat("worker-orcd/", std::string(Version())).c_str());
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
  if (!request.body.empty()) {
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE,
                     static_cast<curl_off_t>(request.body.size()));
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request.body.c_str());
  }
  curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request.method.c_str());
}

// libcurl copies `text`.
void SetPem(CURL* easy, CURLoption option, const std::string& text) {
  curl_blob blob = {
      .data = const_cast<char*>(text.data()), .len = text.size(), .flags = CURL_BLOB_COPY};
  curl_easy_setopt(easy, option, &blob);
}

void SetTls(CURL* easy, const HttpClient::Options& options) {
  curl_easy_setopt(easy, CURLOPT_SSLVERSION, long{CURL_SSLVERSION_TLSv1_2});
  if (!options.ca.empty()) {
    SetPem(easy, CURLOPT_CAINFO_BLOB, options.ca);
    // Otherwise libcurl would trust the system's authorities too.
    curl_easy_setopt(easy, CURLOPT_CAPATH, nullptr);
  }
  if (!options.certificate.empty()) {
    SetPem(easy, CURLOPT_SSLCERT_BLOB, options.certificate);
    SetPem(easy, CURLOPT_SSLKEY_BLOB, options.key);
  }
}

// One call. Owns libcurl's objects for it; they are destroyed in reverse order, the easy handle
// before the multi handle that runs it.
class Transfer {
 public:
  explicit Transfer(size_t max_body_bytes) : multi_(curl_multi_init()), easy_(curl_easy_init()) {
    incoming_.max_body_bytes = max_body_bytes;
  }
  ~Transfer() {
    if (multi_ != nullptr && easy_ != nullptr) curl_multi_remove_handle(multi_.get(), easy_.get());
  }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Returns false if there is no memory for the call. `request` must outlive the transfer.
  bool Begin(const HttpRequest& request, const HttpClient::Options& options) {
    if (multi_ == nullptr || easy_ == nullptr) return false;
    CURL* easy = easy_.get();
    headers_ = HeadersOf(request);
    SetRequest(easy, request, headers_.get());
    SetTls(easy, options);
    // The network path of a kept connection may have been cut long ago.
    curl_easy_setopt(easy, CURLOPT_FORBID_REUSE, 1L);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    // A silent name server must hold up neither the deadline nor a cancellation.
    curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, error_);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, TakeBody);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, &incoming_);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, TakeHeader);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, &incoming_);
    return curl_multi_add_handle(multi_.get(), easy) == CURLM_OK;
  }

  // Continues for at most `left`; returns true if the call is over.
  bool Step(absl::Duration left) {
    int running = 0;
    const CURLMcode performed = curl_multi_perform(multi_.get(), &running);
    if (performed != CURLM_OK || running == 0) return true;
    const auto wait = std::clamp<int64_t>(absl::ToInt64Milliseconds(left) + 1, 1, kPollMs);
    curl_multi_poll(multi_.get(), nullptr, 0, static_cast<int>(wait), nullptr);
    return false;
  }

  // Makes a running Step return. Any thread may call.
  void Wake() { curl_multi_wakeup(multi_.get()); }

  // Must be called once, after the call is over.
  absl::StatusOr<HttpResponse> Result() {
    if (incoming_.too_long) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the answer has more than ", incoming_.max_body_bytes,
                       " bytes, or its headers more than ", kMaxHeaderBytes));
    }
    int queued = 0;
    const CURLMsg* message = curl_multi_info_read(multi_.get(), &queued);
    const CURLcode code = message == nullptr ? CURLE_GOT_NOTHING : message->data.result;
    if (code != CURLE_OK) {
      const char* error = *error_ != '\0' ? error_ : curl_easy_strerror(code);
      long sent = 0;
      curl_easy_getinfo(easy_.get(), CURLINFO_REQUEST_SIZE, &sent);
      return sent > 0 ? absl::UnknownError(error) : absl::UnavailableError(error);
    }
    long status = 0;
    curl_easy_getinfo(easy_.get(), CURLINFO_RESPONSE_CODE, &status);
    return HttpResponse{.status = static_cast<int>(status), .body = std::move(incoming_.body)};
  }

 private:
  Incoming incoming_;
  char error_[CURL_ERROR_SIZE] = "";
  HeaderList headers_;
  const Multi multi_;
  const Easy easy_;
};

}  // namespace

HttpClient::HttpClient(Options options) : options_(std::move(options)) { InitLibrary(); }

absl::StatusOr<HttpResponse> HttpClient::Call(const HttpRequest& request, absl::Duration timeout,
                                              CallCancellation& cancel) const {
  const absl::Time deadline = SteadyNow() + timeout;
  Transfer transfer(options_.max_body_bytes);
  if (!transfer.Begin(request, options_)) {
    return absl::ResourceExhaustedError("no memory for an HTTP call");
  }
  const CallCancellation::Scope scope(cancel, [&transfer] { transfer.Wake(); });
  for (absl::Duration left = timeout; !transfer.Step(left); left = deadline - SteadyNow()) {
    if (cancel.cancelled()) return absl::CancelledError("the call was cancelled");
    if (SteadyNow() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("no answer within ", absl::FormatDuration(timeout)));
    }
  }
  return transfer.Result();
}

}  // namespace orcd
