// What a gateway that schedules on vLLM's workers says to one, and hears.
#ifndef ORCD_INTEGRATION_TESTS_VLLM_CLIENT_H_
#define ORCD_INTEGRATION_TESTS_VLLM_CLIENT_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "integration_tests/worker_client.h"
#include "vllm/vllm_engine.grpc.pb.h"

namespace orcd::testing {

namespace vllm_wire = ::vllm::grpc::engine;

// Everything a Generate call gave.
struct VllmGeneration {
  struct Output {
    // Of the chunks, or of the end where the request did not stream.
    std::vector<uint32_t> ids;
    std::vector<float> logprobs;
    std::vector<uint32_t> logprob_ids;
    std::vector<vllm_wire::TopLogProbs> top_logprobs;
    std::unique_ptr<vllm_wire::GenerateComplete> complete;

    std::string reason() const { return complete ? complete->finish_reason() : ""; }
  };

  RpcError error;
  std::map<uint32_t, Output> outputs;
  int chunks = 0;
  vllm_wire::InputLogProbs input_logprobs;
  // The first way in which the stream broke the protocol; empty where it did not.
  std::string violation;

  // Of the first sample.
  Output& first() { return outputs[0]; }
};

// Whether the call succeeded, every sample had its end, and every end counts the ids that came.
::testing::AssertionResult IsComplete(const VllmGeneration& generation, size_t samples = 1);

// A Generate call that is read message by message. One thread, but for HangUp.
class VllmCall {
 public:
  VllmCall(vllm_wire::VllmEngine::Stub& stub, const vllm_wire::GenerateRequest& request,
           absl::Duration timeout = absl::Seconds(120));
  // Cancels what still runs.
  ~VllmCall();

  VllmCall(const VllmCall&) = delete;
  VllmCall& operator=(const VllmCall&) = delete;

  // Reads one message into the result; false at the end of the stream.
  bool Read();
  // Reads until the first sample has so many ids; false where the stream ended before.
  bool ReadUntilTokens(size_t count);
  void HangUp() { context_.TryCancel(); }
  // Reads to the end.
  VllmGeneration& Finish();

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<vllm_wire::GenerateResponse>> reader_;
  const bool stream_;
  VllmGeneration result_;
  bool done_ = false;
};

// One stub on a channel. Any thread may call.
class VllmClient {
 public:
  explicit VllmClient(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(vllm_wire::VllmEngine::NewStub(channel)) {}

  vllm_wire::VllmEngine::Stub& stub() { return *stub_; }

  VllmGeneration Generate(const vllm_wire::GenerateRequest& request,
                          absl::Duration timeout = absl::Seconds(120));
  RpcError Abort(const std::vector<std::string>& request_ids);
  RpcError HealthCheck();
  // A failed test and an empty one where the worker does not answer.
  vllm_wire::SchedulerLoad Load();

 private:
  std::unique_ptr<vllm_wire::VllmEngine::Stub> stub_;
};

// The request to this protocol that `request`, one of tokens, is to orcd.v1.
vllm_wire::GenerateRequest ToVllm(const v1::GenerateRequest& request, bool stream);

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_VLLM_CLIENT_H_
