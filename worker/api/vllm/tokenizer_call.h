// The GetTokenizer call, which sends the loaded model's tokenizer to a gateway.
#ifndef ORCD_WORKER_API_VLLM_TOKENIZER_CALL_H_
#define ORCD_WORKER_API_VLLM_TOKENIZER_CALL_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/api/vllm/tokenizer_archives.h"

namespace orcd {

// Limits the number of calls at a time, because a call to a slow client keeps a chunk in memory for
// as long as the client takes to read it. Any thread.
class TokenizerCalls {
 public:
  // `archives` must outlive this.
  explicit TokenizerCalls(TokenizerArchives& archives, int max_calls = 64)
      : archives_(archives), max_calls_(max_calls) {}

  // Returns the stream of the archive's chunks, which ends with the archive's errors. The stream
  // deletes itself and may outlive this. Fails with kResourceExhausted (TOO_MANY_CALLS).
  absl::StatusOr<grpc::ServerWriteReactor<grpc::ByteBuffer>*> Start(
      grpc::CallbackServerContext* context);

 private:
  TokenizerArchives& archives_;
  const int max_calls_;
  const std::shared_ptr<std::atomic<int>> calls_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace orcd

#endif  // ORCD_WORKER_API_VLLM_TOKENIZER_CALL_H_
