// A test client of a worker that keeps everything a test may want to look at.
#ifndef ORCD_INTEGRATION_TESTS_WORKER_CLIENT_H_
#define ORCD_INTEGRATION_TESTS_WORKER_CLIENT_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "orcd/v1/worker.grpc.pb.h"

namespace orcd::testing {

// A gRPC status and its decoded google.rpc details.
struct RpcError {
  grpc::StatusCode code = grpc::StatusCode::OK;
  std::string message;
  // From the ErrorInfo; empty if there is none.
  std::string reason;
  std::string domain;
  // Paths of the field violations in the BadRequest.
  std::vector<std::string> fields;
  std::optional<absl::Duration> retry_delay;
  bool has_precondition_failure = false;
  bool has_quota_failure = false;
  bool has_resource_info = false;

  bool ok() const { return code == grpc::StatusCode::OK; }
};
RpcError DecodeError(const grpc::Status& status);
std::ostream& operator<<(std::ostream& out, const RpcError& error);

// True if `error` has this code, a message, and an ErrorInfo of the domain `orcd` with `reason`
// (empty: any reason) and, if `field` is set, a field violation of that path.
::testing::AssertionResult IsError(const RpcError& error, grpc::StatusCode code,
                                   std::string_view reason = {}, std::string_view field = {});

// All results of a Generate call.
struct Generation {
  RpcError error;
  std::optional<v1::GenerateStarted> started;
  std::vector<v1::GenerateDelta> deltas;
  std::optional<v1::GenerateFinished> finished;
  // The first way in which the stream broke the protocol; empty if it did not.
  std::string violation;
  // Concatenated over all deltas.
  std::string text;
  std::vector<uint32_t> ids;
  std::vector<v1::TokenLogprobs> logprobs;

  v1::FinishReason reason() const {
    return finished ? finished->reason() : v1::FINISH_REASON_UNSPECIFIED;
  }
};

// True if the call succeeded, its stream was Started, Deltas, Finished, every delta was whole UTF-8
// and had its required fields, and the usage counts the ids that came.
::testing::AssertionResult IsComplete(const Generation& generation);

// A Generate call that is read message by message. One thread.
class GenerateCall {
 public:
  GenerateCall(v1::Worker::Stub& stub, const v1::GenerateRequest& request, absl::Duration timeout);
  // Cancels a running call.
  ~GenerateCall();

  GenerateCall(const GenerateCall&) = delete;
  GenerateCall& operator=(const GenerateCall&) = delete;

  // Reads one message into the result; false at the end of the stream.
  bool Read();
  // Reads until Started has come; false if the stream ended before.
  bool ReadUntilStarted();
  // Reads until `count` ids have come; false if the stream ended before.
  bool ReadUntilTokens(size_t count);
  void HangUp() { context_.TryCancel(); }
  // Reads to the end.
  const Generation& Finish();
  const Generation& so_far() const { return result_; }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader_;
  bool wants_logprobs_ = false;
  Generation result_;
  bool done_ = false;
};

// All results of a Load call.
struct LoadResult {
  RpcError error;
  struct Progress {
    absl::Time arrival;
    v1::LoadProgress progress;
  };
  std::vector<Progress> progress;
  std::optional<v1::ModelDescription> loaded;
  // True if the description was the last message.
  bool loaded_last = false;
  absl::Time begun;
  absl::Time ended;
};

// One channel to one worker. Any thread may call.
class WorkerClient {
 public:
  explicit WorkerClient(const std::string& address);

  v1::Worker::Stub& stub() { return *stub_; }
  grpc::health::v1::Health::Stub& health_stub() { return *health_stub_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  LoadResult Load(const v1::LoadRequest& request, absl::Duration timeout = absl::Seconds(120),
                  const std::function<void(grpc::ClientContext&, const v1::LoadProgress&)>&
                      on_progress = nullptr);
  LoadResult Load(const std::string& model);
  Generation Generate(const v1::GenerateRequest& request,
                      absl::Duration timeout = absl::Seconds(120));
  RpcError Unload(bool force, v1::UnloadResponse* response = nullptr);
  RpcError Cancel(const std::string& request_id, bool* found = nullptr);
  RpcError Tokenize(const v1::TokenizeRequest& request, std::vector<uint32_t>* ids);
  // The ids of a request that must succeed. If it does not, the test fails and there are no ids.
  std::vector<uint32_t> Tokens(const v1::TokenizeRequest& request);
  // The worker's status. If the worker does not answer, the test fails and the status is empty.
  v1::WorkerStatus Status();
  // Reads the serving status of a service name through grpc.health.v1.
  RpcError Check(const std::string& service,
                 grpc::health::v1::HealthCheckResponse::ServingStatus* status);

  // Wait until the status meets the condition.
  bool WaitForStatus(const std::function<bool(const v1::WorkerStatus&)>& condition,
                     absl::Duration timeout = absl::Seconds(30));
  bool WaitForState(v1::WorkerState state);
  // Waits until no request runs or waits, and every KV block is free.
  bool WaitForQuiet();

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Worker::Stub> stub_;
  std::unique_ptr<grpc::health::v1::Health::Stub> health_stub_;
};

// Sets the deadline of a call, stretched by Bound.
void SetTimeout(grpc::ClientContext& context, absl::Duration timeout);

// Requests with a text, token or chat prompt and default options.
v1::GenerateRequest TextRequest(const std::string& text, uint32_t max_tokens);
v1::GenerateRequest TokenRequest(const std::vector<uint32_t>& ids, uint32_t max_tokens);
v1::GenerateRequest ChatRequest(const std::string& user_message, uint32_t max_tokens);

bool IsValidUtf8(std::string_view text);

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_WORKER_CLIENT_H_
