// Keeps a list of workers as smg 1.13 does, and gives any other answers that a test wants.
#ifndef ORCD_INTEGRATION_TESTS_SCRIPTED_SMG_H_
#define ORCD_INTEGRATION_TESTS_SCRIPTED_SMG_H_

#include <condition_variable>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "integration_tests/scripted_http_server.h"

namespace orcd {

// Serves at one port, where it can go away and come back with an empty list. Any thread.
class ScriptedSmg {
 public:
  using Request = ScriptedHttpServer::Request;
  // Returns the answer to a request; null for the answer of smg itself.
  using Script = std::function<std::optional<std::string>(const Request&)>;

  struct Entry {
    std::string id;
    std::string url;
    std::string status = "ready";
    std::string job_status;
  };

  ScriptedSmg() { ComeBack(); }
  ~ScriptedSmg() { GoAway(); }
  ScriptedSmg(const ScriptedSmg&) = delete;
  ScriptedSmg& operator=(const ScriptedSmg&) = delete;

  bool listens() const { return server_ != nullptr && server_->port() != 0; }
  std::string url() const { return absl::StrCat("http://127.0.0.1:", port_); }

  void GoAway() {
    Locked([this] {
      stopping_ = true;
      changed_.notify_all();
    });
    server_ = nullptr;
    Locked([this] { entries_.clear(); });
  }
  void ComeBack() {
    Locked([this] { stopping_ = false; });
    server_ = std::make_unique<ScriptedHttpServer>(
        [this](const Request& request) { return Answer(request); }, port_);
    port_ = server_->port();
  }

  // Asks `script` for each answer first; a null script answers as smg would.
  void SetScript(Script script) {
    Locked([&] { script_ = std::move(script); });
  }
  // Gives this answer to every request.
  void AnswerAll(int status, const std::string& body) {
    SetScript([answer = ScriptedHttpServer::Answer(status, body)](const Request&) {
      return std::optional<std::string>(answer);
    });
  }
  // While silent, takes requests and never answers.
  void SetSilent(bool silent) {
    Locked([&] {
      silent_ = silent;
      changed_.notify_all();
    });
  }
  void Edit(const std::function<void(std::vector<Entry>&)>& edit) {
    Locked([&] { edit(entries_); });
  }
  // Adds an entry as POST /workers does.
  void Add(const std::string& url) {
    Locked([&] { entries_.push_back({.id = NewId(), .url = url, .job_status = {}}); });
  }

  std::vector<std::string> urls() const {
    return Locked([this] {
      std::vector<std::string> urls;
      for (const Entry& entry : entries_) urls.push_back(entry.url);
      return urls;
    });
  }
  // Method and path of each request, including unanswered ones.
  std::vector<std::string> requests() const {
    return Locked([this] { return requests_; });
  }
  size_t CountOf(const std::string& prefix) const {
    return Locked([&] {
      size_t n = 0;
      for (const std::string& request : requests_) {
        if (absl::StartsWith(request, prefix)) ++n;
      }
      return n;
    });
  }
  std::string last_headers() const {
    return Locked([this] { return last_headers_; });
  }

 private:
  template <typename F>
  auto Locked(const F& f) const -> decltype(f()) {
    std::lock_guard lock(mutex_);
    return f();
  }

  std::optional<std::string> Answer(const Request& request) {
    std::unique_lock lock(mutex_);
    requests_.push_back(absl::StrCat(request.method, " ", request.path));
    last_headers_ = request.headers;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !silent_ || stopping_; });
    if (stopping_) return std::nullopt;
    if (script_) {
      if (auto answer = script_(request)) return answer;
    }
    return AnswerAsSmg(request);
  }

  // With mutex_ held.
  std::string AnswerAsSmg(const Request& request) {
    using nlohmann::json;
    if (request.method == "POST" && request.path == "/workers") {
      const std::string url = json::parse(request.body).at("url");
      for (const Entry& entry : entries_) {
        if (entry.url != url) continue;
        return ScriptedHttpServer::Answer(
            409, json{{"error", absl::StrCat("Worker already exists at URL '", url, "' with ID ",
                                             entry.id, ". Use PUT")},
                      {"code", "WORKER_ALREADY_EXISTS"}}
                     .dump());
      }
      entries_.push_back({.id = NewId(), .url = url, .job_status = {}});
      return ScriptedHttpServer::Answer(
          202,
          json{{"status", "accepted"}, {"worker_id", entries_.back().id}, {"url", url}}.dump());
    }
    if (request.method == "GET" && request.path == "/workers") {
      json list = json::array();
      for (const Entry& entry : entries_) {
        if (entry.status != "pending") list.push_back(ToJson(entry));
      }
      return ScriptedHttpServer::Answer(200, json{{"workers", list}}.dump());
    }
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (request.path != "/workers/" + entries_[i].id) continue;
      if (request.method == "DELETE") {
        entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(i));
        return ScriptedHttpServer::Answer(202, R"({"status":"accepted"})");
      }
      return ScriptedHttpServer::Answer(200, ToJson(entries_[i]).dump());
    }
    return ScriptedHttpServer::Answer(404, R"({"code":"WORKER_NOT_FOUND"})");
  }

  static nlohmann::json ToJson(const Entry& entry) {
    nlohmann::json worker = {{"id", entry.id}, {"url", entry.url}, {"status", entry.status}};
    if (!entry.job_status.empty()) worker["job_status"] = {{"status", entry.job_status}};
    return worker;
  }

  // With mutex_ held.
  std::string NewId() {
    char id[40];
    std::snprintf(id, sizeof(id), "01a202b9-912f-734a-8afe-%012d", ++ids_);
    return id;
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  Script script_;
  bool silent_ = false;
  bool stopping_ = false;
  int ids_ = 0;
  std::vector<Entry> entries_;
  std::vector<std::string> requests_;
  std::string last_headers_;

  int port_ = 0;
  std::unique_ptr<ScriptedHttpServer> server_;
};

}  // namespace orcd

#endif  // ORCD_INTEGRATION_TESTS_SCRIPTED_SMG_H_
