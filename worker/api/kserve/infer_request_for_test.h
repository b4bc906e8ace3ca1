// Inference requests for tests.
#ifndef ORCD_WORKER_API_KSERVE_INFER_REQUEST_FOR_TEST_H_
#define ORCD_WORKER_API_KSERVE_INFER_REQUEST_FOR_TEST_H_

#include <string>

#include "inference/grpc_service.pb.h"

namespace orcd::kserve {

inline inference::InferTensorContents& AddInput(inference::ModelInferRequest& request,
                                                const std::string& name,
                                                const std::string& datatype) {
  auto* input = request.add_inputs();
  input->set_name(name);
  input->set_datatype(datatype);
  input->add_shape(1);
  return *input->mutable_contents();
}

inline void AddBytes(inference::ModelInferRequest& request, const std::string& name,
                     const std::string& value) {
  AddInput(request, name, "BYTES").add_bytes_contents(value);
}

inline void AddBool(inference::ModelInferRequest& request, const std::string& name, bool value) {
  AddInput(request, name, "BOOL").add_bool_contents(value);
}

// A request with typed contents: the prompt and optional sampling parameters.
inline inference::ModelInferRequest InferRequest(const std::string& text,
                                                 const std::string& sampling = "") {
  inference::ModelInferRequest request;
  request.set_model_name("nano");
  AddBytes(request, "text_input", text);
  if (!sampling.empty()) AddBytes(request, "sampling_parameters", sampling);
  return request;
}

// The same inputs in raw_input_contents.
inline inference::ModelInferRequest Raw(inference::ModelInferRequest request) {
  for (auto& input : *request.mutable_inputs()) {
    std::string& raw = *request.add_raw_input_contents();
    if (input.datatype() == "BOOL") {
      raw = input.contents().bool_contents(0) ? '\1' : '\0';
    } else {
      const std::string& value = input.contents().bytes_contents(0);
      for (int shift = 0; shift < 32; shift += 8) {
        raw += static_cast<char>(value.size() >> shift & 0xFF);
      }
      raw += value;
    }
    input.clear_contents();
  }
  return request;
}

}  // namespace orcd::kserve

#endif  // ORCD_WORKER_API_KSERVE_INFER_REQUEST_FOR_TEST_H_
