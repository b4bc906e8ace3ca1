// A GenerateMany call that keeps everything a test may want to look at.
#ifndef ORCD_INTEGRATION_TESTS_MANY_CALL_H_
#define ORCD_INTEGRATION_TESTS_MANY_CALL_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "integration_tests/worker_client.h"
#include "integration_tests/worker_process.h"

namespace orcd::testing {

// All events of one request of a GenerateMany call.
struct ManyGeneration {
  std::optional<v1::GenerateStarted> started;
  // Keyed by sample.
  std::map<uint32_t, std::vector<uint32_t>> ids;
  std::map<uint32_t, std::string> text;
  std::map<uint32_t, std::vector<v1::TokenLogprobs>> logprobs;
  std::optional<v1::GenerateEnd> end;
  // Answers to cancels: true if the request was found.
  std::vector<bool> cancelled;
  // The first way in which the events broke the protocol; empty if they did not.
  std::string violation;

  // The error that ended the request; OK if it ended well or has not ended.
  RpcError error() const;
};

// One thread reads; another may send requests meanwhile.
class ManyCall {
 public:
  explicit ManyCall(v1::Worker::Stub& stub);
  // Cancels running requests.
  ~ManyCall();

  ManyCall(const ManyCall&) = delete;
  ManyCall& operator=(const ManyCall&) = delete;

  // False if the call is over.
  bool Generate(const v1::GenerateRequest& request, absl::Duration timeout = absl::Seconds(120));
  bool Cancel(const std::string& request_id);
  // Tells the worker that no more requests follow.
  void CloseRequests() { stream_->WritesDone(); }
  // Reads one message into the results; false at the end of the call.
  bool Read();
  // Reads until the request has ended; false if the call ended before.
  bool ReadUntilEnd(const std::string& request_id);
  void HangUp() { context_.TryCancel(); }
  // Reads to the end of the call.
  RpcError Finish();

  std::map<std::string, ManyGeneration>& by_id() { return by_id_; }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::GenerateManyRequest, v1::GenerateManyResponse>>
      stream_;
  std::map<std::string, ManyGeneration> by_id_;
  bool done_ = false;
};

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_MANY_CALL_H_
