// The tensors of the Open Inference Protocol: their specifications, and a request's tensors as
// values.
#ifndef ORCD_WORKER_API_KSERVE_TENSORS_H_
#define ORCD_WORKER_API_KSERVE_TENSORS_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "inference/grpc_service.pb.h"

namespace orcd::kserve {

inline constexpr char kModelVersion[] = "1";

// The names are those of Triton's vLLM backend; token_ids is our own.
inline constexpr char kTextInput[] = "text_input";
inline constexpr char kSamplingParameters[] = "sampling_parameters";
inline constexpr char kStream[] = "stream";
inline constexpr char kExcludeInput[] = "exclude_input_in_output";
inline constexpr char kReturnFinishReason[] = "return_finish_reason";
inline constexpr char kReturnInputTokens[] = "return_num_input_tokens";
inline constexpr char kReturnOutputTokens[] = "return_num_output_tokens";

inline constexpr char kTextOutput[] = "text_output";
inline constexpr char kFinishReason[] = "finish_reason";
inline constexpr char kTokenIds[] = "token_ids";
inline constexpr char kInputTokens[] = "num_input_tokens";
inline constexpr char kOutputTokens[] = "num_output_tokens";

struct TensorSpec {
  const char* name;
  // The datatype as the protocol writes it, then as Triton's model configuration does.
  const char* datatype;
  inference::DataType type;
  // Size of the only dimension. -1: any number.
  int64_t size;
  bool optional;
};

std::span<const TensorSpec> InputSpecs();
std::span<const TensorSpec> OutputSpecs();

// The inputs of a request.
struct InferInputs {
  // UTF-8.
  std::string text;
  // JSON. Empty: none.
  std::string sampling_parameters;
  bool stream = false;
  // If the input is absent, the opposite of `stream`, as in Triton's vLLM backend.
  bool echo_text = false;
  bool return_finish_reason = false;
  bool return_input_tokens = false;
  bool return_output_tokens = false;
  // True if the inputs came in raw_input_contents.
  bool raw = false;
};

// Fails with kInvalidArgument (INVALID_FIELD), which names the wrong part by its path, such as
// `inputs[1].shape`.
absl::StatusOr<InferInputs> ReadInputs(const inference::ModelInferRequest& request);

// Quotes a name from outside so that it may appear in an error message.
std::string Quoted(std::string_view name);

// Adds tensors to `response`, typed or raw.
class OutputWriter {
 public:
  OutputWriter(inference::ModelInferResponse& response, bool raw)
      : response_(response), raw_(raw) {}

  // These two add a tensor of one element.
  void AddBytes(const char* name, std::string_view value);
  void AddUint32(const char* name, uint32_t value);
  void AddInt32s(const char* name, std::span<const int32_t> values);

 private:
  inference::ModelInferResponse::InferOutputTensor& Add(const char* name, const char* datatype,
                                                        int64_t size);

  inference::ModelInferResponse& response_;
  const bool raw_;
};

}  // namespace orcd::kserve

#endif  // ORCD_WORKER_API_KSERVE_TENSORS_H_
