#include "worker/fleet/smg_link.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/base/steady_time.h"

namespace orcd {
namespace {

constexpr size_t kMaxApiKeyBytes = 4096;
constexpr char kApiKeyAdvice[] = "--orchestrator-key-file names a file that holds smg's API key";
// Replaces the ttl while an entry is about to change.
constexpr absl::Duration kSoon = absl::Seconds(1);
// Longest part of an error answer that a log line quotes.
constexpr size_t kMaxExcerpt = 300;

constexpr char kPending[] = "pending";
constexpr char kDraining[] = "draining";

constexpr int kOk = 200;
constexpr int kAccepted = 202;
constexpr int kUnauthorized = 401;
constexpr int kForbidden = 403;
constexpr int kNotFound = 404;
constexpr int kConflict = 409;
constexpr int kBadGateway = 502;
constexpr int kGatewayTimeout = 504;

bool IsReady(const LinkReport& report) { return report.status.state() == v1::WORKER_STATE_READY; }

absl::Status ToError(const std::string& call, const HttpResponse& response) {
  const std::string what = absl::StrCat(call, " was answered with HTTP ", response.status, ": ",
                                        response.body.substr(0, kMaxExcerpt));
  if (response.status == kUnauthorized || response.status == kForbidden) {
    return absl::PermissionDeniedError(
        absl::StrCat(what, "; --orchestrator-key-file names the file of smg's API key"));
  }
  return absl::UnavailableError(what);
}

// Returns true if a request may have been carried out although it failed.
bool OutcomeIsUnknown(const absl::StatusOr<HttpResponse>& response) {
  if (response.ok()) {
    // The proxy in between got no answer from smg.
    return response->status == kBadGateway || response->status == kGatewayTimeout;
  }
  return !absl::IsUnavailable(response.status());
}

std::string EntryOf(const std::string& url) {
  const nlohmann::json entry = {{"url", url}};
  return entry.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

// Returns the key in a file's content. Errors reveal nothing of it.
absl::StatusOr<std::shared_ptr<const std::string>> ParseApiKey(const std::string& path,
                                                               const std::string& content) {
  std::string key(absl::StripAsciiWhitespace(content));
  const bool is_one_word =
      std::all_of(key.begin(), key.end(), [](unsigned char c) { return absl::ascii_isgraph(c); });
  if (key.empty() || key.size() > kMaxApiKeyBytes || !is_one_word) {
    return MakeError(absl::StatusCode::kInvalidArgument,
                     absl::StrCat(path, ": is not one key of at most ", kMaxApiKeyBytes,
                                  " visible characters; ", kApiKeyAdvice),
                     {.reason = "API_KEY_FILE_INVALID", .subject = path});
  }
  return std::make_shared<const std::string>(std::move(key));
}

// smg accepts an entry before it has spoken to the worker; this describes the current problem.
std::string ProblemOf(const SmgWorker& worker, const std::string& url) {
  if (worker.status == kPending) {
    return absl::StrCat("smg has not reached the worker at ", url,
                        " yet; --advertise-address says where it should");
  }
  if (worker.status == kDraining) {
    return absl::StrCat("smg is taking an entry of ", url, " out that it was told to remove; the ",
                        "worker enters itself again when it is gone");
  }
  if (worker.status == "not_ready" || worker.status == "failed") {
    return absl::StrCat("smg's health checks of ", url, " fail: it says ", worker.status);
  }
  return "";
}

}  // namespace

absl::StatusOr<LastGood<std::string>> WatchSmgApiKey(const std::string& path,
                                                     FileWatcher& watcher) {
  return LastGood<std::string>::Watch(
      watcher, {.paths = {path}, .reason = "API_KEY_FILE_INVALID", .advice = kApiKeyAdvice},
      [path](const std::vector<std::string>& contents) { return ParseApiKey(path, contents[0]); });
}

SmgLink::SmgLink(Options options)
    : options_(std::move(options)), url_(absl::StrCat("grpc://", options_.address)) {}

absl::StatusOr<LinkReply> SmgLink::Register(const LinkReport& report, absl::Duration timeout,
                                            CallCancellation& cancel) {
  const Bounds bounds{SteadyNow() + timeout, cancel};
  if (!IsReady(report)) {
    // A worker that had this address before may have been killed and still be listed.
    return Leave(bounds);
  }
  return Enter(report, bounds);
}

absl::StatusOr<LinkReply> SmgLink::Heartbeat(const std::string&, uint64_t, const LinkReport& report,
                                             absl::Duration timeout, CallCancellation& cancel) {
  const Bounds bounds{SteadyNow() + timeout, cancel};
  if (!IsReady(report)) {
    return maybe_entered_ ? Leave(bounds) : Reply(false);
  }
  const bool other_model = report.status.model().model_id() != model_id_;
  if (maybe_entered_ && other_model) {
    ORCD_ASSIGN_OR_RETURN(const std::optional<SmgWorker> left, TakeOut(bounds));
    if (left && left->status != kPending) {
      LinkReply reply = Reply(true);
      reply.ttl = kSoon;
      return reply;
    }
    return Enter(report, bounds);
  }
  if (!maybe_entered_) return Enter(report, bounds);
  absl::StatusOr<std::optional<SmgWorker>> found = Find(bounds);
  if (!found.ok()) return found.status();
  if (!*found) {
    id_.clear();
    return absl::NotFoundError("the worker is not listed");
  }
  const SmgWorker& worker = **found;
  const bool given_up = worker.status == kPending && worker.job_status != "pending" &&
                        worker.job_status != "processing";
  if (given_up) return absl::NotFoundError("smg has given the worker up");
  id_ = worker.id;
  LinkReply reply = Reply(true);
  reply.problem = ProblemOf(worker, url_);
  if (worker.status == kDraining) reply.ttl = kSoon;
  return reply;
}

absl::Status SmgLink::Deregister(const std::string&, const LinkReport&, absl::Duration timeout,
                                 CallCancellation& cancel) {
  return TakeOut({SteadyNow() + timeout, cancel}).status();
}

absl::StatusOr<LinkReply> SmgLink::Enter(const LinkReport& report, const Bounds& bounds) {
  model_id_ = report.status.model().model_id();
  const absl::StatusOr<HttpResponse> response = Call("POST", "/workers", EntryOf(url_), bounds);
  if (OutcomeIsUnknown(response)) maybe_entered_ = true;
  ORCD_RETURN_IF_ERROR(response.status());
  if (response->status != kAccepted && response->status != kOk && response->status != kConflict) {
    return ToError("POST /workers", *response);
  }
  maybe_entered_ = true;
  // If the worker is listed already, the answer is a sentence that contains the id. Without an id
  // the next look at the whole list finds it.
  id_ = FindSmgWorkerId(response->body);
  LinkReply reply = Reply(true);
  // The listed entry may be one that smg is removing.
  if (response->status == kConflict) reply.ttl = kSoon;
  return reply;
}

absl::StatusOr<LinkReply> SmgLink::Leave(const Bounds& bounds) {
  ORCD_ASSIGN_OR_RETURN(const std::optional<SmgWorker> left, TakeOut(bounds));
  LinkReply reply = Reply(false);
  if (left && left->status != kPending) reply.ttl = kSoon;
  return reply;
}

absl::StatusOr<std::optional<SmgWorker>> SmgLink::TakeOut(const Bounds& bounds) {
  if (!id_.empty()) ORCD_RETURN_IF_ERROR(Delete(bounds));
  if (id_.empty()) {
    // An smg that was restarted may list the worker under another id.
    ORCD_ASSIGN_OR_RETURN(const std::optional<SmgWorker> listed, FindInList(bounds));
    if (listed) {
      if (listed->id.empty()) return absl::UnavailableError("smg lists the worker without an id");
      id_ = listed->id;
      ORCD_RETURN_IF_ERROR(Delete(bounds));
    }
  }
  std::optional<SmgWorker> left;
  if (!id_.empty()) {
    ORCD_ASSIGN_OR_RETURN(left, FindById(bounds));
    if (left && left->status == kDraining) left.reset();
  }
  maybe_entered_ = left.has_value();
  if (!left) id_.clear();
  return left;
}

absl::Status SmgLink::Delete(const Bounds& bounds) {
  ORCD_ASSIGN_OR_RETURN(const HttpResponse response,
                        Call("DELETE", absl::StrCat("/workers/", id_), "", bounds));
  if (response.status == kNotFound) {
    id_.clear();
  } else if (response.status != kAccepted && response.status != kOk) {
    return ToError("DELETE /workers/{id}", response);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<SmgWorker>> SmgLink::Find(const Bounds& bounds) const {
  return id_.empty() ? FindInList(bounds) : FindById(bounds);
}

absl::StatusOr<std::optional<SmgWorker>> SmgLink::FindById(const Bounds& bounds) const {
  ORCD_ASSIGN_OR_RETURN(const HttpResponse response,
                        Call("GET", absl::StrCat("/workers/", id_), "", bounds));
  if (response.status == kNotFound) return std::nullopt;
  if (response.status != kOk) return ToError("GET /workers/{id}", response);
  ORCD_ASSIGN_OR_RETURN(SmgWorker worker, ParseSmgWorker(response.body));
  if (worker.url != url_) return std::nullopt;
  return worker;
}

absl::StatusOr<std::optional<SmgWorker>> SmgLink::FindInList(const Bounds& bounds) const {
  ORCD_ASSIGN_OR_RETURN(const HttpResponse response, Call("GET", "/workers", "", bounds));
  if (response.status != kOk) return ToError("GET /workers", response);
  ORCD_ASSIGN_OR_RETURN(const std::vector<SmgWorker> workers, ParseSmgWorkers(response.body));
  const auto own = std::find_if(workers.begin(), workers.end(),
                                [this](const SmgWorker& worker) { return worker.url == url_; });
  if (own == workers.end()) return std::nullopt;
  return *own;
}

absl::StatusOr<HttpResponse> SmgLink::Call(const std::string& method, const std::string& path,
                                           const std::string& body, const Bounds& bounds) const {
  HttpClient::Options http;
  if (options_.tls != nullptr) {
    http.ca = options_.tls->servers()->pem();
    if (const std::shared_ptr<const KeyPair> own = options_.tls->own()) {
      http.certificate = own->certificate_pem();
      http.key = own->key_pem();
    }
  }
  const absl::Duration left = std::max(bounds.deadline - SteadyNow(), absl::ZeroDuration());
  return HttpClient(std::move(http))
      .Call({.method = method,
             .url = absl::StrCat(options_.orchestrator, path),
             .body = body,
             .bearer_token = options_.api_key ? *options_.api_key->Get() : std::string()},
            left, bounds.cancel);
}

LinkReply SmgLink::Reply(bool entered) const {
  // smg has no lease ids; the URL under which it lists the worker stands in for one.
  return {.lease_id = url_, .ttl = options_.ttl, .directives = {}, .entered = entered};
}

}  // namespace orcd
