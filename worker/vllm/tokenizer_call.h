// The GetTokenizer call: the loaded model's tokenizer, told to a gateway.
#ifndef ORCD_WORKER_VLLM_TOKENIZER_CALL_H_
#define ORCD_WORKER_VLLM_TOKENIZER_CALL_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "worker/vllm/tokenizer_archives.h"

namespace orcd {

// The stream of the archive's chunks, with its errors; it deletes itself.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartTokenizerCall(grpc::CallbackServerContext* context,
                                                               TokenizerArchives& archives);

}  // namespace orcd

#endif  // ORCD_WORKER_VLLM_TOKENIZER_CALL_H_
