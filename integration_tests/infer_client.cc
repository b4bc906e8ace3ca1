#include "integration_tests/infer_client.h"

#include <utility>

#include "absl/status/status.h"

namespace orcd::testing {
namespace {

constexpr size_t kLengthBytes = 4;

std::string LittleEndian(uint32_t value) {
  std::string bytes;
  for (size_t i = 0; i < kLengthBytes; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xFF);
  return bytes;
}

uint32_t LittleEndian(const std::string& bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    value |= uint32_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  }
  return value;
}

}  // namespace

inference::InferTensorContents& AddInput(inference::ModelInferRequest& request,
                                         const std::string& name, const std::string& datatype) {
  auto* input = request.add_inputs();
  input->set_name(name);
  input->set_datatype(datatype);
  input->add_shape(1);
  return *input->mutable_contents();
}

void AddBytes(inference::ModelInferRequest& request, const std::string& name,
              const std::string& value) {
  AddInput(request, name, "BYTES").add_bytes_contents(value);
}

void AddBool(inference::ModelInferRequest& request, const std::string& name, bool value) {
  AddInput(request, name, "BOOL").add_bool_contents(value);
}

inference::ModelInferRequest InferRequest(const std::string& text, const std::string& sampling) {
  inference::ModelInferRequest request;
  request.set_model_name("nano");
  AddBytes(request, "text_input", text);
  if (!sampling.empty()) AddBytes(request, "sampling_parameters", sampling);
  return request;
}

void AskForTokens(inference::ModelInferRequest& request) {
  for (const char* name : {"text_output", "token_ids", "finish_reason"}) {
    request.add_outputs()->set_name(name);
  }
}

inference::ModelInferRequest Raw(inference::ModelInferRequest request) {
  for (auto& input : *request.mutable_inputs()) {
    std::string& raw = *request.add_raw_input_contents();
    if (input.datatype() == "BOOL") {
      raw = std::string(1, input.contents().bool_contents(0) ? '\1' : '\0');
    } else {
      const std::string& value = input.contents().bytes_contents(0);
      raw = LittleEndian(static_cast<uint32_t>(value.size())) + value;
    }
    input.clear_contents();
  }
  return request;
}

void Inference::Take(const inference::ModelInferResponse& reply) {
  const auto violate = [&](const std::string& what) {
    if (violation.empty()) violation = what;
  };
  if (ended) violate("an answer after the last");
  ++answers;
  if (reply.outputs().empty()) ++empty_answers;
  if (reply.model_version() != "1") violate("no version");
  const bool raw = reply.raw_output_contents_size() > 0;
  if (raw && reply.raw_output_contents_size() != reply.outputs_size()) {
    violate("raw contents for some of the outputs");
    return;
  }
  for (int i = 0; i < reply.outputs_size(); ++i) {
    const auto& output = reply.outputs(i);
    if (raw && output.has_contents()) violate("typed and raw contents");
    if (output.datatype() == "BYTES") {
      const std::string value = raw ? reply.raw_output_contents(i).substr(kLengthBytes)
                                    : output.contents().bytes_contents(0);
      if (raw && LittleEndian(reply.raw_output_contents(i), 0) != value.size()) {
        violate("a length that is none");
      }
      if (output.name() == "text_output") text += value;
      if (output.name() == "finish_reason") finish_reason = value;
    } else if (output.name() == "token_ids") {
      for (int64_t j = 0; j < output.shape(0); ++j) {
        ids.push_back(
            raw ? LittleEndian(reply.raw_output_contents(i), kLengthBytes * j)
                : static_cast<uint32_t>(output.contents().int_contents(static_cast<int>(j))));
      }
    }
  }
}

Inference Infer(inference::GRPCInferenceService::Stub& stub,
                const inference::ModelInferRequest& request, absl::Duration timeout) {
  grpc::ClientContext context;
  SetTimeout(context, timeout);
  inference::ModelInferResponse reply;
  Inference result;
  result.error = DecodeError(stub.ModelInfer(&context, request, &reply));
  if (result.error.ok()) {
    result.Take(reply);
    if (reply.id() != request.id()) result.violation = "another id";
    result.ended = true;
  }
  return result;
}

InferStream::InferStream(inference::GRPCInferenceService::Stub& stub) {
  SetTimeout(context_, absl::Minutes(5));
  stream_ = stub.ModelStreamInfer(&context_);
}

InferStream::~InferStream() {
  if (done_) return;
  HangUp();
  Finish();
}

bool InferStream::Read() {
  inference::ModelStreamInferResponse response;
  if (done_ || !stream_->Read(&response)) return false;
  const inference::ModelInferResponse& reply = response.infer_response();
  Inference& inference = by_id_[reply.id()];
  const auto& parameters = reply.parameters();
  const bool is_final = parameters.contains("triton_final_response") &&
                        parameters.at("triton_final_response").bool_param();
  if (response.error_message().empty()) {
    inference.Take(reply);
  } else {
    if (inference.ended) inference.violation = "an error after the end";
    if (!is_final) inference.violation = "an error that is not the end";
    const std::string& code = parameters.at("error_code").string_param();
    inference.error.message = response.error_message();
    inference.error.reason = parameters.at("error_reason").string_param();
    inference.error.domain = "orcd";
    inference.error.code = grpc::StatusCode::UNKNOWN;
    for (int i = 1; i <= static_cast<int>(grpc::StatusCode::UNAUTHENTICATED); ++i) {
      if (absl::StatusCodeToString(static_cast<absl::StatusCode>(i)) == code) {
        inference.error.code = static_cast<grpc::StatusCode>(i);
      }
    }
  }
  inference.ended = inference.ended || is_final;
  return true;
}

bool InferStream::ReadUntilEnd(const std::string& id) {
  while (!by_id_[id].ended) {
    if (!Read()) return false;
  }
  return true;
}

bool InferStream::ReadUntilTokens(const std::string& id, size_t count) {
  while (by_id_[id].ids.size() < count) {
    if (by_id_[id].ended || !Read()) return false;
  }
  return true;
}

RpcError InferStream::Finish() {
  while (Read()) {
  }
  done_ = true;
  return DecodeError(stream_->Finish());
}

}  // namespace orcd::testing
