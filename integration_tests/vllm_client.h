// A test client that speaks to a worker as a gateway of vLLM workers does.
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

// All results of a Generate call.
struct VllmGeneration {
  struct Output {
    // Collected from the chunks, or from the end if the request did not stream.
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
  // The first way in which the stream broke the protocol; empty if it did not.
  std::string violation;

  // The first sample's output.
  Output& first() { return outputs[0]; }
};

// True if the call succeeded, every sample ended, and every end counts the ids that came.
::testing::AssertionResult IsComplete(const VllmGeneration& generation, size_t samples = 1);

// A Generate call that is read message by message. One thread, except for HangUp.
class VllmCall {
 public:
  VllmCall(vllm_wire::VllmEngine::Stub& stub, const vllm_wire::GenerateRequest& request,
           absl::Duration timeout = absl::Seconds(120));
  // Cancels a running call.
  ~VllmCall();

  VllmCall(const VllmCall&) = delete;
  VllmCall& operator=(const VllmCall&) = delete;

  // Reads one message into the result; false at the end of the stream.
  bool Read();
  // Reads until the first sample has `count` ids; false if the stream ended before.
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
  // The scheduler's load. If the worker does not answer, the test fails and the result is empty.
  vllm_wire::SchedulerLoad Load();

 private:
  std::unique_ptr<vllm_wire::VllmEngine::Stub> stub_;
};

// Converts `request`, whose prompt is tokens, from orcd.v1 to this protocol.
vllm_wire::GenerateRequest ToVllm(const v1::GenerateRequest& request, bool stream);

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_VLLM_CLIENT_H_
