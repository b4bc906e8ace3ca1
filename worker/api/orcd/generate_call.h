// A call that generates for one request, in any protocol: parsed and admitted on the host's pool,
// then written by a TokenStream.
#ifndef ORCD_WORKER_API_ORCD_GENERATE_CALL_H_
#define ORCD_WORKER_API_ORCD_GENERATE_CALL_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/request.h"
#include "worker/api/orcd/request_builder.h"
#include "worker/base/logging.h"
#include "worker/host/model_host.h"
#include "worker/observe/telemetry.h"
#include "worker/stream/response_encoder.h"
#include "worker/stream/token_stream.h"

namespace orcd {

// A generation request, parsed from a protocol's bytes.
struct GenerateAsked {
  RequestBuilder request;
  // Makes the response encoder. The GenerationRequest it gets lacks only its sink.
  std::function<std::unique_ptr<ResponseEncoder>(const GenerationRequest&, const Engine&)> encoder;
  // Counted from the call's arrival; the call's deadline bounds the request too.
  absl::Duration timeout = absl::InfiniteDuration();
};

struct GenerateCallOptions {
  // For the log.
  std::string method;
  TokenStreamLimits limits = {};
  // Null: nothing is measured.
  Telemetry* telemetry = nullptr;
  // Numbers of the fields that lead to the request's id in the protocol's message. Empty: the
  // request cannot be cancelled by its id.
  std::vector<int> id_path = {};
  // Parses the request, on a thread of the host's pool.
  std::function<absl::StatusOr<GenerateAsked>(const grpc::ByteBuffer&)> read;
  // Converts the status of a refused request to the protocol's wording. Null: it stays.
  std::function<absl::Status(const absl::Status&)> in_words = nullptr;
};

// Return the call's reactor. The host's pool reads and encodes the request; if the pool or the
// engine refuses it, the call ends. `host`, `log` and the telemetry must outlive the call. The
// encoder of a unary call is at once and makes one message, or none with an error.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartGenerateCall(grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer& bytes,
                                                              ModelHost& host, const Logger& log,
                                                              GenerateCallOptions options);
grpc::ServerUnaryReactor* StartUnaryGenerateCall(grpc::CallbackServerContext* context,
                                                 const grpc::ByteBuffer& bytes,
                                                 grpc::ByteBuffer* response, ModelHost& host,
                                                 const Logger& log, GenerateCallOptions options);

}  // namespace orcd

#endif  // ORCD_WORKER_API_ORCD_GENERATE_CALL_H_
