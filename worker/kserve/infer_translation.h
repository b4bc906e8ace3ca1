// From an inference request to orcd.v1's, and how its answers are to look.
#ifndef ORCD_WORKER_KSERVE_INFER_TRANSLATION_H_
#define ORCD_WORKER_KSERVE_INFER_TRANSLATION_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "inference/grpc_service.pb.h"
#include "worker/multiplexed_call.h"

namespace orcd::kserve {

// How the answers to a request look.
struct InferForm : public RequestNotes {
  // Comes back.
  std::string id;
  std::string model_name;
  bool raw = false;
  // Its output is told as it comes.
  bool stream = false;
  // A last answer without outputs says that the request has ended.
  bool empty_final = false;
  // Which outputs there are.
  bool text = false;
  bool finish_reason = false;
  bool token_ids = false;
  bool input_tokens = false;
  bool output_tokens = false;
};

// ModelInfer answers once, ModelStreamInfer as often as it likes.
enum class InferCallKind { kUnary, kStream };

// Its `refusal` is set, to a kInvalidArgument (INVALID_FIELD) or kNotFound (MODEL_NOT_FOUND), where
// it cannot be asked of the engine; its `notes` are an InferForm then too. Its request_id begins
// with the id of `request` where that may stand in one, and is unique.
MultiplexedGenerate TranslateInfer(const inference::ModelInferRequest& request, InferCallKind kind);

// OK where `version` is empty or the only one there is; kNotFound (MODEL_NOT_FOUND).
absl::Status CheckModelVersion(const std::string& model, const std::string& version);

// kNotFound (MODEL_NOT_FOUND).
absl::Status NoSuchModel(std::string_view field, const std::string& name);

// `status` of a request in the words of this protocol: with its names of fields.
absl::Status InInferWords(const absl::Status& status);

}  // namespace orcd::kserve

#endif  // ORCD_WORKER_KSERVE_INFER_TRANSLATION_H_
