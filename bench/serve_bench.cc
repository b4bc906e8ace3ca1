// Loads a worker over real gRPC in open loop. Requests arrive at random times (Poisson), regardless
// of earlier requests, and are measured from the time they were due, so that a worker that falls
// behind cannot hide it.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "nlohmann/json.hpp"
#include "orcd/v1/worker.grpc.pb.h"

namespace orcd {
namespace {

struct Options {
  std::string address = "127.0.0.1:50051";
  std::string call = "generate";
  int clients = 1;
  int requests = 100;
  double rate = 0;
  std::string prompt = "64";
  std::string output = "32";
  int shared_prefix = 0;
  double temperature = 1;
  double timeout = 600;
  uint64_t seed = 1;
  std::string json;
};

// A number of tokens: `64`, `16:512` (uniform), or `~64` (exponential, mean 64).
class Length {
 public:
  static std::optional<Length> Parse(const std::string& text) {
    Length length;
    length.exponential_ = text.starts_with('~');
    const std::vector<std::string> parts =
        absl::StrSplit(length.exponential_ ? text.substr(1) : text, ':');
    if (!absl::SimpleAtoi(parts[0], &length.least_) || length.least_ < 1) return std::nullopt;
    length.most_ = length.least_;
    if (parts.size() == 2 && !absl::SimpleAtoi(parts[1], &length.most_)) return std::nullopt;
    if (parts.size() > 2 || length.most_ < length.least_) return std::nullopt;
    return length;
  }
  int Draw(std::mt19937_64& random) const {
    if (!exponential_) return std::uniform_int_distribution<int>(least_, most_)(random);
    return 1 + static_cast<int>(std::exponential_distribution<double>(1.0 / least_)(random));
  }

 private:
  bool exponential_ = false;
  int least_ = 1;
  int most_ = 1;
};

// A histogram of durations in buckets that are 2% wide.
class Histogram {
 public:
  void Add(double seconds, int64_t count = 1) {
    const double place = std::log(std::max(seconds, kLeast) / kLeast) / std::log(kRatio);
    const size_t bucket = std::min(static_cast<size_t>(place), kBuckets - 1);
    counts_[bucket] += count;
    total_ += count;
    sum_ += seconds * static_cast<double>(count);
    most_ = std::max(most_, seconds);
  }
  void Add(const Histogram& other) {
    for (size_t i = 0; i < kBuckets; ++i) counts_[i] += other.counts_[i];
    total_ += other.total_;
    sum_ += other.sum_;
    most_ = std::max(most_, other.most_);
  }
  // In seconds; 0 if the histogram is empty.
  double Percentile(double percent) const {
    const double wanted = static_cast<double>(total_) * percent / 100;
    int64_t seen = 0;
    for (size_t i = 0; i < kBuckets; ++i) {
      seen += counts_[i];
      if (seen > 0 && static_cast<double>(seen) >= wanted) return Middle(i);
    }
    return 0;
  }
  nlohmann::json ToJson() const {
    nlohmann::json json;
    json["count"] = total_;
    json["mean"] = total_ == 0 ? 0 : sum_ / static_cast<double>(total_);
    json["max"] = most_;
    for (const double percent : {50.0, 90.0, 99.0}) {
      json[absl::StrCat("p", percent)] = Percentile(percent);
    }
    // Data for a plot: [seconds, share of all durations that are at most this long].
    json["distribution"] = nlohmann::json::array();
    int64_t seen = 0;
    for (size_t i = 0; i < kBuckets; ++i) {
      if (counts_[i] == 0) continue;
      seen += counts_[i];
      json["distribution"].push_back(
          {Middle(i), static_cast<double>(seen) / static_cast<double>(total_)});
    }
    return json;
  }

 private:
  static constexpr double kLeast = 1e-8;
  static constexpr double kRatio = 1.02;
  static constexpr size_t kBuckets = 1400;

  static double Middle(size_t bucket) {
    return kLeast * std::pow(kRatio, static_cast<double>(bucket) + 0.5);
  }

  std::vector<int64_t> counts_ = std::vector<int64_t>(kBuckets);
  int64_t total_ = 0;
  double sum_ = 0;
  double most_ = 0;
};

// Outcomes of the requests. Any thread.
class Tally {
 public:
  void Started(int requests) {
    std::lock_guard lock(mutex_);
    running_ += requests;
    most_running_ = std::max(most_running_, running_);
  }
  void FirstToken(double seconds) {
    std::lock_guard lock(mutex_);
    first_token_.Add(seconds);
  }
  // `count` tokens that came together, `seconds` after the previous ones.
  void Tokens(int64_t count) { tokens_ += count; }
  void NextTokens(double seconds, int64_t count) {
    std::lock_guard lock(mutex_);
    between_tokens_.Add(seconds / static_cast<double>(count), count);
  }
  void Ended(double seconds, const std::string& reason) {
    std::lock_guard lock(mutex_);
    if (reason.empty()) {
      whole_.Add(seconds);
      ++complete_;
    } else {
      ++failures_[reason];
    }
    --running_;
    ended_.notify_all();
  }
  void Message() { ++messages_; }
  void AwaitAll() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return running_ == 0; });
  }

  nlohmann::json ToJson(double seconds) const {
    std::lock_guard lock(mutex_);
    nlohmann::json json;
    json["seconds"] = seconds;
    json["complete"] = complete_;
    json["failures"] = failures_;
    json["most_at_once"] = most_running_;
    json["tokens"] = tokens_.load();
    json["messages"] = messages_.load();
    json["tokens_per_second"] = static_cast<double>(tokens_) / seconds;
    json["requests_per_second"] = static_cast<double>(complete_) / seconds;
    json["time_to_first_token"] = first_token_.ToJson();
    json["between_tokens"] = between_tokens_.ToJson();
    json["end_to_end"] = whole_.ToJson();
    return json;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  int64_t running_ = 0;
  int64_t most_running_ = 0;
  int64_t complete_ = 0;
  std::map<std::string, int64_t> failures_;
  std::atomic<int64_t> tokens_ = 0;
  std::atomic<int64_t> messages_ = 0;
  Histogram first_token_;
  Histogram between_tokens_;
  Histogram whole_;
};

std::string ReasonOf(const google::rpc::Status& status) {
  google::rpc::ErrorInfo info;
  for (const auto& any : status.details()) any.UnpackTo(&info);
  return info.reason().empty() ? absl::StrCat("code ", status.code()) : info.reason();
}

std::string ReasonOf(const grpc::Status& status) {
  if (status.ok()) return "";
  google::rpc::Status rpc;
  rpc.ParseFromString(status.error_details());
  rpc.set_code(status.error_code());
  return ReasonOf(rpc);
}

// Takes the times of one request. One thread at a time.
class Watch {
 public:
  Watch(Tally& tally, absl::Time due) : tally_(tally), due_(due) {}

  void OnDelta(const v1::GenerateDelta& delta) {
    const int64_t count = delta.token_ids_size();
    if (count == 0) return;
    const absl::Time now = absl::Now();
    tally_.Tokens(count);
    if (last_ == absl::InfinitePast()) {
      tally_.FirstToken(absl::ToDoubleSeconds(now - due_));
      if (count > 1) tally_.NextTokens(0, count - 1);
    } else {
      tally_.NextTokens(absl::ToDoubleSeconds(now - last_), count);
    }
    last_ = now;
  }
  void OnEnd(const std::string& reason) {
    tally_.Ended(absl::ToDoubleSeconds(absl::Now() - due_), reason);
  }

 private:
  Tally& tally_;
  const absl::Time due_;
  absl::Time last_ = absl::InfinitePast();
};

// A way to send requests to the worker. Any thread.
class Client {
 public:
  virtual ~Client() = default;
  virtual void Generate(v1::GenerateRequest request, absl::Time due) = 0;
};

// A Generate call for each request.
class StreamClient : public Client {
 public:
  StreamClient(v1::Worker::Stub& stub, Tally& tally, absl::Duration timeout)
      : stub_(stub), tally_(tally), timeout_(timeout) {}

  void Generate(v1::GenerateRequest request, absl::Time due) override {
    new Call(*this, std::move(request), due);
  }

 private:
  // Deletes itself when the call is over.
  class Call : public grpc::ClientReadReactor<v1::GenerateResponse> {
   public:
    Call(StreamClient& client, v1::GenerateRequest request, absl::Time due)
        : tally_(client.tally_), request_(std::move(request)), watch_(client.tally_, due) {
      context_.set_deadline(absl::ToChronoTime(due + client.timeout_));
      client.stub_.async()->Generate(&context_, &request_, this);
      StartRead(&response_);
      StartCall();
    }
    void OnReadDone(bool ok) override {
      if (!ok) return;
      tally_.Message();
      if (response_.has_delta()) watch_.OnDelta(response_.delta());
      StartRead(&response_);
    }
    void OnDone(const grpc::Status& status) override {
      watch_.OnEnd(ReasonOf(status));
      delete this;
    }

   private:
    Tally& tally_;
    grpc::ClientContext context_;
    const v1::GenerateRequest request_;
    v1::GenerateResponse response_;
    Watch watch_;
  };

  v1::Worker::Stub& stub_;
  Tally& tally_;
  const absl::Duration timeout_;
};

// One GenerateMany call for all requests.
class ManyClient
    : public Client,
      private grpc::ClientBidiReactor<v1::GenerateManyRequest, v1::GenerateManyResponse> {
 public:
  ManyClient(v1::Worker::Stub& stub, Tally& tally, absl::Duration timeout)
      : tally_(tally), timeout_(timeout) {
    stub.async()->GenerateMany(&context_, this);
    AddHold();
    StartRead(&response_);
    StartCall();
  }
  ~ManyClient() override {
    StartWritesDone();
    RemoveHold();
    std::unique_lock lock(mutex_);
    done_changed_.wait(lock, [this] { return done_; });
  }

  void Generate(v1::GenerateRequest request, absl::Time due) override {
    v1::GenerateManyRequest message;
    message.mutable_timeout()->set_seconds(absl::ToInt64Seconds(timeout_));
    *message.mutable_generate() = std::move(request);
    std::lock_guard lock(mutex_);
    watches_.emplace(message.generate().request_id(), Watch(tally_, due));
    to_write_.push_back(std::move(message));
    Write();
  }

 private:
  // With mutex_ held. AddHold keeps gRPC from calling the reactor on this thread.
  void Write() {
    if (writing_ || to_write_.empty()) return;
    writing_ = true;
    StartWrite(&to_write_.front());
  }
  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    writing_ = false;
    to_write_.pop_front();
    if (ok) Write();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    tally_.Message();
    for (const v1::GenerateEvent& event : response_.events()) {
      if (!event.has_delta() && !event.has_end()) continue;
      Watch* watch = nullptr;
      {
        std::lock_guard lock(mutex_);
        watch = &watches_.at(event.request_id());
      }
      if (event.has_delta()) {
        watch->OnDelta(event.delta());
        continue;
      }
      watch->OnEnd(event.end().has_status() ? ReasonOf(event.end().status()) : "");
      std::lock_guard lock(mutex_);
      watches_.erase(event.request_id());
    }
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    std::lock_guard lock(mutex_);
    for (auto& [id, watch] : watches_) watch.OnEnd(ReasonOf(status));
    watches_.clear();
    done_ = true;
    done_changed_.notify_all();
  }

  Tally& tally_;
  const absl::Duration timeout_;
  grpc::ClientContext context_;
  v1::GenerateManyResponse response_;

  std::mutex mutex_;
  std::condition_variable done_changed_;
  std::deque<v1::GenerateManyRequest> to_write_;
  bool writing_ = false;
  bool done_ = false;
  std::unordered_map<std::string, Watch> watches_;
};

v1::GenerateRequest MakeRequest(const Options& options, const Length& prompt, const Length& output,
                                int index, uint32_t vocab, std::mt19937_64& random) {
  v1::GenerateRequest request;
  request.set_request_id(absl::StrCat("bench-", options.seed, "-", index));
  for (int i = 0; i < options.shared_prefix; ++i) request.mutable_tokens()->add_ids(i % vocab);
  for (int i = prompt.Draw(random); i > 0; --i) request.mutable_tokens()->add_ids(random() % vocab);
  request.mutable_sampling()->set_seed(random());
  request.mutable_sampling()->set_temperature(static_cast<float>(options.temperature));
  request.mutable_stop()->set_ignore_eog(true);
  request.mutable_stop()->set_max_tokens(output.Draw(random));
  return request;
}

void PrintTable(const nlohmann::json& result) {
  std::printf("requests    %lld complete, %.1f a second, at most %lld at once\n",
              result["complete"].get<long long>(), result["requests_per_second"].get<double>(),
              result["most_at_once"].get<long long>());
  for (const auto& [reason, count] : result["failures"].items()) {
    std::printf("            %lld %s\n", count.get<long long>(), reason.c_str());
  }
  std::printf("tokens      %lld, %.1f a second, in %lld messages\n",
              result["tokens"].get<long long>(), result["tokens_per_second"].get<double>(),
              result["messages"].get<long long>());
  std::printf("\n%-22s %12s %12s %12s %12s\n", "milliseconds", "p50", "p90", "p99", "max");
  for (const char* what : {"time_to_first_token", "between_tokens", "end_to_end"}) {
    const nlohmann::json& times = result[what];
    std::printf("%-22s %12.4f %12.4f %12.4f %12.4f\n", what, 1e3 * times["p50"].get<double>(),
                1e3 * times["p90"].get<double>(), 1e3 * times["p99"].get<double>(),
                1e3 * times["max"].get<double>());
  }
}

int Run(const Options& options) {
  const std::optional<Length> prompt = Length::Parse(options.prompt);
  const std::optional<Length> output = Length::Parse(options.output);
  if (!prompt || !output) {
    std::cerr << "serve_bench: a length is N, LEAST:MOST or ~MEAN, at least 1\n";
    return 2;
  }
  std::vector<std::unique_ptr<v1::Worker::Stub>> stubs;
  for (int i = 0; i < options.clients; ++i) {
    grpc::ChannelArguments arguments;
    // Gives each stub its own connection.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stubs.push_back(v1::Worker::NewStub(
        grpc::CreateCustomChannel(options.address, grpc::InsecureChannelCredentials(), arguments)));
  }
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
  v1::HealthResponse health;
  const grpc::Status status = stubs[0]->Health(&context, {}, &health);
  if (!status.ok() || !health.status().has_model()) {
    std::cerr << "serve_bench: no worker with a model at " << options.address << ": "
              << status.error_message() << "\n";
    return 1;
  }

  Tally tally;
  std::vector<std::unique_ptr<Client>> clients;
  for (const auto& stub : stubs) {
    const absl::Duration timeout = absl::Seconds(options.timeout);
    if (options.call == "many") {
      clients.push_back(std::make_unique<ManyClient>(*stub, tally, timeout));
    } else {
      clients.push_back(std::make_unique<StreamClient>(*stub, tally, timeout));
    }
  }
  std::mt19937_64 random(options.seed);
  const absl::Time start = absl::Now();
  absl::Time due = start;
  for (int i = 0; i < options.requests; ++i) {
    v1::GenerateRequest request =
        MakeRequest(options, *prompt, *output, i, health.status().model().vocab(), random);
    absl::SleepFor(due - absl::Now());
    tally.Started(1);
    clients[i % clients.size()]->Generate(std::move(request), due);
    if (options.rate > 0) {
      due += absl::Seconds(std::exponential_distribution<double>(options.rate)(random));
    } else {
      due = absl::Now();
    }
  }
  tally.AwaitAll();
  nlohmann::json result = tally.ToJson(absl::ToDoubleSeconds(absl::Now() - start));
  clients.clear();
  result["call"] = options.call;
  result["clients"] = options.clients;
  result["rate"] = options.rate;
  result["prompt_tokens"] = options.prompt;
  result["output_tokens"] = options.output;
  result["shared_prefix"] = options.shared_prefix;
  result["backend"] = health.status().device().backend();
  result["model"] = health.status().model().file();
  PrintTable(result);
  if (!options.json.empty()) std::ofstream(options.json) << result.dump(1) << "\n";
  return 0;
}

}  // namespace
}  // namespace orcd

int main(int argc, char** argv) {
  orcd::Options options;
  CLI::App app("Loads a worker and measures what its clients see.", "serve_bench");
  app.add_option("--address", options.address, "Worker's host:port")->capture_default_str();
  app.add_option("--call", options.call, "generate: a call a request; many: one for all")
      ->check(CLI::IsMember({"generate", "many"}))
      ->capture_default_str();
  app.add_option("--clients", options.clients, "Connections")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--requests", options.requests, "Requests in all")->capture_default_str();
  app.add_option("--rate", options.rate, "Requests a second; 0: all at once")
      ->capture_default_str();
  app.add_option("--prompt-tokens", options.prompt, "N, LEAST:MOST or ~MEAN")
      ->capture_default_str();
  app.add_option("--output-tokens", options.output, "N, LEAST:MOST or ~MEAN")
      ->capture_default_str();
  app.add_option("--shared-prefix", options.shared_prefix, "Tokens that all prompts begin with")
      ->capture_default_str();
  app.add_option("--temperature", options.temperature)->capture_default_str();
  app.add_option("--timeout", options.timeout, "Seconds a request may take")->capture_default_str();
  app.add_option("--seed", options.seed, "Of arrivals, lengths and prompts")->capture_default_str();
  app.add_option("--json", options.json, "Write the result here, for tools/plot-serve");
  CLI11_PARSE(app, argc, argv);
  return orcd::Run(options);
}
