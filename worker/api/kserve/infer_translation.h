// Reads an inference request for the engine, and describes the form of its answers.
#ifndef ORCD_WORKER_API_KSERVE_INFER_TRANSLATION_H_
#define ORCD_WORKER_API_KSERVE_INFER_TRANSLATION_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "inference/grpc_service.pb.h"
#include "worker/api/orcd/multiplexed_call.h"

namespace orcd::kserve {

// The form of the answers to one request.
struct InferForm : public RequestNotes {
  // Returned in every answer.
  std::string id;
  std::string model_name;
  bool raw = false;
  // True if the output is sent as it is generated.
  bool stream = false;
  // True if a last answer without outputs marks the end of the request.
  bool empty_final = false;
  // The outputs that the answers have.
  bool text = false;
  bool finish_reason = false;
  bool token_ids = false;
  bool input_tokens = false;
  bool output_tokens = false;
};

// ModelInfer answers once, ModelStreamInfer any number of times.
enum class InferCallKind { kUnary, kStream };

// Translates the request. If the engine cannot serve it, the result's `refusal` is set to
// kInvalidArgument (INVALID_FIELD) or kNotFound (MODEL_NOT_FOUND). The result's `notes` are an
// InferForm in any case. Its id is unique and begins with the id of `request` if that id is
// allowed in one.
MultiplexedGenerate TranslateInfer(const inference::ModelInferRequest& request, InferCallKind kind);

// OK if `version` is empty or the only version there is, otherwise kNotFound (MODEL_NOT_FOUND).
absl::Status CheckModelVersion(const std::string& model, const std::string& version);

// The error kNotFound (MODEL_NOT_FOUND).
absl::Status NoSuchModel(std::string_view field, const std::string& name);

// Returns `status` in this protocol's words if its own speak of other calls or fields of orcd.v1.
absl::Status InInferWords(const absl::Status& status);

}  // namespace orcd::kserve

#endif  // ORCD_WORKER_API_KSERVE_INFER_TRANSLATION_H_
