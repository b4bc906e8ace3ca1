// What a client of inference.GRPCInferenceService says and hears.
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

// The model of WorkerTest, typed contents; `sampling` is JSON, empty: none.
inference::ModelInferRequest InferRequest(const std::string& text, const std::string& sampling);
inference::InferTensorContents& AddInput(inference::ModelInferRequest& request,
                                         const std::string& name, const std::string& datatype);
void AddBytes(inference::ModelInferRequest& request, const std::string& name,
              const std::string& value);
void AddBool(inference::ModelInferRequest& request, const std::string& name, bool value);
// Asks for text_output, token_ids and finish_reason.
void AskForTokens(inference::ModelInferRequest& request);
// The same inputs in raw_input_contents.
inference::ModelInferRequest Raw(inference::ModelInferRequest request);

// What was said of one request.
struct Inference {
  RpcError error;
  std::string text;
  std::vector<uint32_t> ids;
  std::string finish_reason;
  // Answers, and those of them that had no outputs.
  int answers = 0;
  int empty_answers = 0;
  // The last answer has come.
  bool ended = false;
  // The first way in which the answers broke the protocol; empty where they did not.
  std::string violation;

  void Take(const inference::ModelInferResponse& reply);
};

Inference Infer(inference::GRPCInferenceService::Stub& stub,
                const inference::ModelInferRequest& request,
                absl::Duration timeout = absl::Seconds(120));

// A ModelStreamInfer call. One thread, but that requests may be sent by another than the one that
// reads.
class InferStream {
 public:
  explicit InferStream(inference::GRPCInferenceService::Stub& stub);
  // Cancels what still runs.
  ~InferStream();

  InferStream(const InferStream&) = delete;
  InferStream& operator=(const InferStream&) = delete;

  // False where the call is over.
  bool Send(const inference::ModelInferRequest& request) { return stream_->Write(request); }
  // No more requests.
  void CloseRequests() { stream_->WritesDone(); }
  // Reads one message into the results; false at the end of the call.
  bool Read();
  // Read until the request has ended, or has so many ids; false where the call ended before.
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
