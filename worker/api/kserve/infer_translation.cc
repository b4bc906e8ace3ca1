#include "worker/api/kserve/infer_translation.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "worker/api/kserve/sampling_parameters.h"
#include "worker/api/kserve/tensors.h"
#include "worker/api/orcd/request_builder.h"

namespace orcd::kserve {
namespace {

// These texts are in every answer, and a refused request keeps them until its answer is read.
constexpr size_t kMaxIdBytes = 256;
constexpr size_t kMaxModelNameBytes = 256;
constexpr char kEmptyFinal[] = "triton_enable_empty_final_response";
constexpr char kTimeout[] = "timeout";

constexpr RequestFields kFields = {.sampling = "sampling_parameters.",
                                   .stop_strings = "sampling_parameters.stop",
                                   .stop_ids = "sampling_parameters.stop_token_ids",
                                   .min_tokens = "sampling_parameters.min_tokens",
                                   .max_tokens = "sampling_parameters.max_tokens",
                                   .prompt = kTextInput,
                                   .text = kTextInput};

// The engine's name for a request. The ids of this protocol need not be unique.
std::string RequestId(const std::string& id) {
  const std::string own = MakeRequestId();
  const std::string both = absl::StrCat(id, "-", own);
  return CheckRequestId(both).ok() && !id.empty() ? both : own;
}

absl::Status ReadTimeout(const inference::InferParameter& value, MultiplexedGenerate& asked) {
  if (!value.has_int64_param() || value.int64_param() < 0) {
    return InvalidField("parameters.timeout",
                        "must be an int64_param of microseconds, 0 or more; 0 is none");
  }
  if (value.int64_param() > 0) asked.timeout = absl::Microseconds(value.int64_param());
  return absl::OkStatus();
}

absl::Status ReadEmptyFinal(const inference::InferParameter& value, InferCallKind kind,
                            InferForm& form) {
  const std::string field = absl::StrCat("parameters.", kEmptyFinal);
  if (!value.has_bool_param()) return InvalidField(field, "must be a bool_param");
  if (value.bool_param() && kind == InferCallKind::kUnary) {
    return InvalidField(field, "is for ModelStreamInfer; ModelInfer answers once, leave it out");
  }
  form.empty_final = value.bool_param();
  return absl::OkStatus();
}

// Reads which outputs are asked for, by name or else by an input.
absl::Status ReadOutputs(const inference::ModelInferRequest& request, const InferInputs& inputs,
                         InferForm& form) {
  if (request.outputs().empty()) {
    form.text = true;
    form.finish_reason = inputs.return_finish_reason;
    form.input_tokens = inputs.return_input_tokens;
    form.output_tokens = inputs.return_output_tokens;
    return absl::OkStatus();
  }
  absl::flat_hash_set<std::string_view> seen;
  for (int i = 0; i < request.outputs_size(); ++i) {
    const auto& output = request.outputs(i);
    const std::string& name = output.name();
    const std::string path = absl::StrCat("outputs[", i, "]");
    const auto specs = OutputSpecs();
    const auto spec = std::find_if(specs.begin(), specs.end(),
                                   [&](const TensorSpec& known) { return name == known.name; });
    if (spec == specs.end()) {
      return InvalidField(path + ".name", absl::StrCat("is ", Quoted(name),
                                                       ", which is no output of this model; "
                                                       "ModelMetadata lists those there are"));
    }
    if (!seen.insert(spec->name).second) {
      return InvalidField(path + ".name",
                          absl::StrCat("is ", Quoted(name), " again; ask for it once"));
    }
    if (!output.parameters().empty()) {
      return InvalidField(path + ".parameters",
                          absl::StrCat("has ", Quoted(output.parameters().begin()->first),
                                       ", which is not supported; leave it out"));
    }
  }
  form.text = seen.contains(kTextOutput);
  form.finish_reason = seen.contains(kFinishReason);
  form.token_ids = seen.contains(kTokenIds);
  form.input_tokens = seen.contains(kInputTokens);
  form.output_tokens = seen.contains(kOutputTokens);
  return absl::OkStatus();
}

absl::Status Translate(const inference::ModelInferRequest& request, InferCallKind kind,
                       MultiplexedGenerate& asked, InferForm& form) {
  if (request.id().size() > kMaxIdBytes) {
    return InvalidField("id", absl::StrCat("has ", request.id().size(), " bytes; at most ",
                                           kMaxIdBytes, " are allowed"));
  }
  form.id = request.id();
  if (request.model_name().empty()) {
    return InvalidField("model_name", "is empty; RepositoryIndex lists the models");
  }
  if (request.model_name().size() > kMaxModelNameBytes) {
    return NoSuchModel("model_name", request.model_name());
  }
  ORCD_RETURN_IF_ERROR(CheckModelVersion(request.model_name(), request.model_version()));
  form.model_name = request.model_name();
  asked.request.set_model_id(request.model_name());
  ORCD_ASSIGN_OR_RETURN(InferInputs inputs, ReadInputs(request));
  form.raw = inputs.raw;
  ORCD_RETURN_IF_ERROR(ReadOutputs(request, inputs, form));
  if (inputs.stream && kind == InferCallKind::kUnary) {
    return InvalidField(kStream, "is set, and ModelInfer answers once; use ModelStreamInfer");
  }
  form.stream = inputs.stream;
  asked.at_once = !inputs.stream;

  // The parameters are vLLM's, and so is the order of the sampling steps.
  asked.request.sampling().temperature_first = true;
  SamplingParameters sampling(asked.request);
  ORCD_RETURN_IF_ERROR(sampling.AddJson(inputs.sampling_parameters));
  for (const auto& [name, value] : request.parameters()) {
    if (name == kTimeout) {
      ORCD_RETURN_IF_ERROR(ReadTimeout(value, asked));
    } else if (name == kEmptyFinal) {
      ORCD_RETURN_IF_ERROR(ReadEmptyFinal(value, kind, form));
    } else {
      ORCD_RETURN_IF_ERROR(sampling.AddParameter(name, value));
    }
  }
  if (inputs.echo_text && form.text) asked.preface = inputs.text;
  // This protocol has no chat. A client that wants one writes the template's control tokens.
  asked.request.SetPrompt(TextPrompt{std::move(inputs.text), /*parse_special=*/true});
  return absl::OkStatus();
}

}  // namespace

MultiplexedGenerate TranslateInfer(const inference::ModelInferRequest& request,
                                   InferCallKind kind) {
  MultiplexedGenerate asked{.request = RequestBuilder(kFields)};
  auto form = std::make_shared<InferForm>();
  asked.refusal = Translate(request, kind, asked, *form);
  asked.request.SetId(RequestId(form->id));
  asked.notes = std::move(form);
  return asked;
}

absl::Status CheckModelVersion(const std::string& model, const std::string& version) {
  if (version.empty() || version == kModelVersion) return absl::OkStatus();
  return MakeError(absl::StatusCode::kNotFound,
                   absl::StrCat("model_version: ", Quoted(version), " of ", Quoted(model),
                                " is not there; leave it empty, or ask for '", kModelVersion, "'"),
                   {.reason = "MODEL_NOT_FOUND", .subject = Quoted(model)});
}

absl::Status NoSuchModel(std::string_view field, const std::string& name) {
  return MakeError(
      absl::StatusCode::kNotFound,
      absl::StrCat(absl::string_view(field.data(), field.size()), ": there is no model ",
                   Quoted(name), "; RepositoryIndex lists those there are"),
      {.reason = "MODEL_NOT_FOUND",
       .field = std::string(field),
       .subject = name.substr(0, kMaxModelNameBytes)});
}

absl::Status InInferWords(const absl::Status& status) {
  const ErrorDetails details = GetErrorDetails(status);
  if (details.reason == "DRAINED") {
    return MakeError(status.code(),
                     "this worker drains and ended the request; send it to another worker",
                     details);
  }
  if (details.reason == "MODEL_NOT_FOUND" && details.field == "model_id") {
    return NoSuchModel("model_name", details.subject);
  }
  return status;
}

}  // namespace orcd::kserve
