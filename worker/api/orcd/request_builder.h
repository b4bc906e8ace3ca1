// Fills the engine's request from a request of any protocol.
#ifndef ORCD_WORKER_API_ORCD_REQUEST_BUILDER_H_
#define ORCD_WORKER_API_ORCD_REQUEST_BUILDER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/constraint/constraint_compiler.h"
#include "runtime/constraint/constraint_spec.h"
#include "runtime/engine/request.h"
#include "runtime/model/model.h"
#include "runtime/sampling/partial_sampling.h"
#include "runtime/text/prompt_piece.h"

namespace orcd {

// `ids` are a protocol's, uint32_t. Those beyond any vocabulary become negative; the checks against
// the vocabulary catch them and print them as they were.
template <typename Ids>
std::vector<int32_t> ToIds(const Ids& ids) {
  return {ids.begin(), ids.end()};
}

// The count as the engine takes it: every count above INT32_MAX means the same as INT32_MAX.
int32_t Saturate(uint32_t count);

struct TextPrompt {
  std::string text;
  // True if control tokens in the text are recognised.
  bool parse_special = false;
};
using Prompt = std::variant<TextPrompt, ChatRequest, std::vector<int32_t>>;

// The start of a constraint whose protocol names no place.
enum class ConstraintStart {
  // As its spec says.
  kAsGiven,
  // After the end of the model's thinking if the prompt ends in it, else as its spec says.
  kAfterThinking,
};

// A request on its way to the engine. A façade sets the values that its client sent; all others
// keep the defaults of worker.proto. Errors are kInvalidArgument and name the field by `fields`. A
// value that no model takes is an error of CheckParameters, so that a worker without the model says
// that first. For one thread.
class RequestBuilder {
 public:
  // `fields` has static storage.
  explicit RequestBuilder(const RequestFields& fields = kOrcdFields);

  // For values that are taken as they are. The seed is random unless it is set.
  GenerationRequest& request() { return request_; }
  SamplingParams& sampling() { return request_.sampling; }
  StopConditions& stop() { return request_.stop; }
  const GenerationRequest& request() const { return request_; }
  const std::string& model_id() const { return model_id_; }
  void set_model_id(std::string id) { model_id_ = std::move(id); }

  // Empty: CheckParameters generates one.
  void SetId(std::string id);
  // An error is the result of EncodePrompt.
  void SetPrompt(absl::StatusOr<Prompt> prompt) { prompt_ = std::move(prompt); }
  // Counts are saturated.
  void SetTopK(uint32_t count);
  void SetSamples(uint32_t count);
  void SetMinTokens(uint32_t count);
  void SetMaxTokens(uint32_t count);
  void SetLogprobs(uint32_t count);
  void SetPromptLogprobs(uint32_t count);
  void SetLogitBias(uint32_t id, float bias) { logit_bias_[static_cast<int32_t>(id)] = bias; }
  // The model's file decides what is open in `asked`; the defaults, if the file says nothing.
  void SetSamplingOverDefaults(const PartialSampling& asked) { over_defaults_ = asked; }
  // The numeric identity under which the tokens to resume from were drawn; empty: CheckNumerics
  // does not compare it. With `any`, the request may go on under another.
  void SetResumedNumerics(std::string identity, bool any) {
    resumed_numerics_ = any ? std::string() : std::move(identity);
  }
  void SetConstraint(absl::StatusOr<ConstraintSpec> spec,
                     ConstraintStart start = ConstraintStart::kAsGiven);
  // Null if there is none.
  const ConstraintSpec* constraint() const { return constraint_ ? &*constraint_ : nullptr; }

  // Checks and completes everything but the prompt and the constraint. Cheap.
  absl::Status CheckParameters(const Model& model);
  // Fails with kFailedPrecondition (NUMERIC_IDENTITY_DIFFERS) if the request is resumed and its
  // tokens were drawn under another numeric identity than the backend's.
  absl::Status CheckNumerics(const std::string& numeric_identity) const;
  // Begins to compile the constraint, if there is one. Cheap. Fails with the errors of
  // ConstraintCompiler::Compile. Must be called before EncodePrompt.
  absl::Status CompileConstraint(const Model& model, ConstraintCompiler& compiler);
  // True if the prompt needs the two steps below; a prompt of tokens needs EncodePrompt alone,
  // which is cheap then.
  bool must_encode() const;
  // Renders a conversation, which takes milliseconds, and at most about a second. Fails with the
  // errors of ChatTemplate::Render.
  absl::Status RenderPrompt(const Model& model);
  // Returns a lower bound of the prompt's tokens from its bytes alone; 0 for a conversation that is
  // not rendered yet.
  int64_t LeastPromptTokens(const Model& model) const;
  // Encodes the prompt into the request, which may take seconds. Renders it first if that was not
  // done.
  absl::Status EncodePrompt(const Model& model);

 private:
  GenerationRequest request_;
  std::string model_id_;
  absl::StatusOr<Prompt> prompt_ = std::vector<int32_t>();
  // Takes the place of a conversation in prompt_.
  std::optional<std::vector<PromptPiece>> rendered_;
  std::map<int32_t, float> logit_bias_;
  std::optional<PartialSampling> over_defaults_;
  std::optional<ConstraintSpec> constraint_;
  std::string resumed_numerics_;
  ConstraintStart constraint_start_ = ConstraintStart::kAsGiven;
  // The first error of a setter.
  absl::Status error_;
};

// Fails with kInvalidArgument naming `request_id` unless `id` has 1 to 128 characters of
// [A-Za-z0-9._:-].
absl::Status CheckRequestId(const std::string& id);

// Returns 16 hex digits from the system's random source.
std::string MakeRequestId();

}  // namespace orcd

#endif  // ORCD_WORKER_API_ORCD_REQUEST_BUILDER_H_
