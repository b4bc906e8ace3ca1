// A test client of inference.GRPCInferenceService.
#ifndef ORCD_INTEGRATION_TESTS_INFER_CLIENT_H_
#define ORCD_INTEGRATION_TESTS_INFER_CLIENT_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "inference/grpc_service.grpc.pb.h"
#include "integration_tests/worker_client.h"

namespace orcd::testing {

// A request to WorkerTest's model with typed contents. `sampling` is JSON; empty means none.
inference::ModelInferRequest InferRequest(const std::string& text, const std::string& sampling);
inference::InferTensorContents& AddInput(inference::ModelInferRequest& request,
                                         const std::string& name, const std::string& datatype);
void AddBytes(inference::ModelInferRequest& request, const std::string& name,
              const std::string& value);
void AddBool(inference::ModelInferRequest& request, const std::string& name, bool value);
// Requests the outputs text_output, token_ids and finish_reason.
void AskForTokens(inference::ModelInferRequest& request);
// Moves the inputs to raw_input_contents.
inference::ModelInferRequest Raw(inference::ModelInferRequest request);

// All answers to one request.
struct Inference {
  RpcError error;
  std::string text;
  std::vector<uint32_t> ids;
  std::string finish_reason;
  // Number of answers, and how many of them have no outputs.
  int answers = 0;
  int empty_answers = 0;
  // True once the last answer has come.
  bool ended = false;
  // The first way in which the answers broke the protocol; empty if they did not.
  std::string violation;

  void Take(const inference::ModelInferResponse& reply);
};

Inference Infer(inference::GRPCInferenceService::Stub& stub,
                const inference::ModelInferRequest& request,
                absl::Duration timeout = absl::Seconds(120));

// A ModelStreamInfer call. One thread reads; another may send requests meanwhile.
class InferStream {
 public:
  explicit InferStream(inference::GRPCInferenceService::Stub& stub);
  // Cancels running requests.
  ~InferStream();

  InferStream(const InferStream&) = delete;
  InferStream& operator=(const InferStream&) = delete;

  // False if the call is over.
  bool Send(const inference::ModelInferRequest& request) { return stream_->Write(request); }
  // Tells the worker that no more requests follow.
  void CloseRequests() { stream_->WritesDone(); }
  // Reads one message into the results; false at the end of the call.
  bool Read();
  // Read until the request has ended, or has `count` ids; false if the call ended before.
  bool ReadUntilEnd(const std::string& id);
  bool ReadUntilTokens(const std::string& id, size_t count);
  void HangUp() { context_.TryCancel(); }
  // Reads to the end of the call.
  RpcError Finish();

  std::map<std::string, Inference>& by_id() { return by_id_; }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<
      grpc::ClientReaderWriter<inference::ModelInferRequest, inference::ModelStreamInferResponse>>
      stream_;
  std::map<std::string, Inference> by_id_;
  bool done_ = false;
};

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_INFER_CLIENT_H_
