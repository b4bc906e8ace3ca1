#include "worker/api/kserve/sampling_parameters.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/base/json_shape.h"
#include "runtime/constraint/structural_tag.h"
#include "worker/api/kserve/tensors.h"
#include "worker/api/orcd/grammar_dialect.h"

namespace orcd::kserve {
namespace {

// A schema's properties are generated in its order.
using Json = OrderedJson;

// Enough for a JSON Schema as deep as any that is served, in the parameter that has it deepest.
constexpr int kMaxDepth = 128;
constexpr double kMaxUint32 = std::numeric_limits<uint32_t>::max();

// A JSON value with the path under which errors name it.
class Value {
 public:
  Value(std::string field, const Json& value) : field_(std::move(field)), value_(value) {}

  const std::string& field() const { return field_; }

  absl::StatusOr<float> Float() const {
    const std::optional<double> number = Number();
    if (!number) return Wrong("a number");
    // Too large for a float. The range check refuses the infinity.
    constexpr double kMost = std::numeric_limits<float>::max();
    if (std::abs(*number) > kMost) {
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      return *number < 0 ? -kInfinity : kInfinity;
    }
    return static_cast<float>(*number);
  }
  absl::StatusOr<uint32_t> Count() const {
    const std::optional<uint64_t> number = Unsigned();
    if (!number || *number > std::numeric_limits<uint32_t>::max()) {
      return Wrong("a whole number from 0 to 4294967295");
    }
    return static_cast<uint32_t>(*number);
  }
  absl::StatusOr<bool> Bool() const {
    if (value_.is_boolean()) return value_.get<bool>();
    bool value = false;
    if (value_.is_string() && absl::SimpleAtob(value_.get_ref<const std::string&>(), &value)) {
      return value;
    }
    return Wrong("true or false");
  }
  absl::StatusOr<std::string> Text() const {
    if (!value_.is_string()) return Wrong("text");
    return value_.get<std::string>();
  }
  // Calls `do_it` with each element, or with the value if it is not a list, until one fails.
  template <typename Do>
  absl::Status ForEachElement(const Do& do_it) const {
    if (!value_.is_array()) return do_it(*this);
    for (size_t i = 0; i < value_.size(); ++i) {
      ORCD_RETURN_IF_ERROR(do_it(Value(absl::StrCat(field_, "[", i, "]"), value_[i])));
    }
    return absl::OkStatus();
  }
  // True if the value is a text, list or object without content.
  bool IsEmpty() const {
    return value_.is_string() ? value_.get_ref<const std::string&>().empty()
                              : value_.is_structured() && value_.empty();
  }
  std::optional<double> Number() const {
    if (value_.is_number()) return value_.get<double>();
    double number = 0;
    if (value_.is_string() && absl::SimpleAtod(value_.get_ref<const std::string&>(), &number)) {
      return number;
    }
    return std::nullopt;
  }
  // The exact value. Unset if it is not a whole number or has another type.
  std::optional<uint64_t> Unsigned() const {
    if (value_.is_number_unsigned()) return value_.get<uint64_t>();
    if (value_.is_number_integer()) {
      const int64_t number = value_.get<int64_t>();
      return number < 0 ? std::nullopt : std::optional<uint64_t>(number);
    }
    uint64_t number = 0;
    if (value_.is_string() && absl::SimpleAtoi(value_.get_ref<const std::string&>(), &number)) {
      return number;
    }
    const std::optional<double> real = Number();
    if (!real || !(*real >= 0 && *real <= kMaxUint32) || *real != std::floor(*real)) {
      return std::nullopt;
    }
    return static_cast<uint64_t>(*real);
  }
  // Calls `do_it` with the name and value of each member of an object, except null members.
  template <typename Do>
  absl::Status ForEachMember(const Do& do_it) const {
    if (!value_.is_object()) return Wrong("an object");
    for (const auto& [name, member] : value_.items()) {
      if (member.is_null()) continue;
      ORCD_RETURN_IF_ERROR(
          do_it(name, Value(absl::StrCat(field_, "[", Quoted(name), "]"), member)));
    }
    return absl::OkStatus();
  }

  // Calls `do_it` with the name and value of each member of an object, except null members. The
  // object may also be the content of a text.
  template <typename Do>
  absl::Status ForEachField(const Do& do_it) const {
    if (value_.is_string()) {
      const std::string& inside = value_.get_ref<const std::string&>();
      const JsonShape shape = ScanJson(inside, kMaxDepth);
      const Json object = shape.is_json && !shape.too_deep && !shape.twice
                              ? Json::parse(inside, nullptr, /*allow_exceptions=*/false)
                              : Json();
      if (!object.is_object()) return Wrong("an object, or a text that holds one as JSON");
      return Value(field_, object).ForEachField(do_it);
    }
    if (!value_.is_object()) return Wrong("an object, or a text that holds one as JSON");
    for (const auto& [name, member] : value_.items()) {
      if (member.is_null()) continue;
      ORCD_RETURN_IF_ERROR(do_it(name, Value(absl::StrCat(field_, ".", name), member)));
    }
    return absl::OkStatus();
  }
  // A member of an object. Unset if it is null, or if this is no object or has no such member.
  std::optional<Value> Member(const std::string& name) const {
    const Json* const member = FindMember(value_, name);
    if (member == nullptr || member->is_null()) return std::nullopt;
    return Value(absl::StrCat(field_, ".", name), *member);
  }
  // A JSON document that is sent as an object, or as the content of a text.
  absl::StatusOr<std::string> Document() const {
    if (value_.is_string()) return value_.get<std::string>();
    if (value_.is_object()) return value_.dump();
    return Wrong("an object, or a text that holds one as JSON");
  }

  absl::Status Wrong(std::string_view must_be) const {
    std::string text = value_.dump(-1, ' ', false, Json::error_handler_t::replace);
    return InvalidField(field_,
                        absl::StrCat("is ", Quoted(text), "; it must be ", std::string(must_be)));
  }

 private:
  const std::string field_;
  const Json& value_;
};

using Setter = absl::Status (*)(const Value& value, RequestBuilder& request);

template <float SamplingParams::*kField>
absl::Status SetFloat(const Value& value, RequestBuilder& request) {
  ORCD_ASSIGN_OR_RETURN(request.sampling().*kField, value.Float());
  return absl::OkStatus();
}

template <auto kSet>
absl::Status SetCount(const Value& value, RequestBuilder& request) {
  ORCD_ASSIGN_OR_RETURN(const uint32_t number, value.Count());
  (request.*kSet)(number);
  return absl::OkStatus();
}

// For a parameter that would change something fixed here: accepts only the value for the fixed
// behaviour.
template <bool kIs>
absl::Status MustBe(const Value& value, RequestBuilder&) {
  ORCD_ASSIGN_OR_RETURN(const bool is, value.Bool());
  if (is == kIs) return absl::OkStatus();
  return value.Wrong(kIs ? "true here, or left out" : "false here, or left out");
}

// Accepts both values, because they make no difference here.
absl::Status MustBeBool(const Value& value, RequestBuilder&) { return value.Bool().status(); }

absl::Status MustBeEmpty(const Value& value, RequestBuilder&) {
  if (value.IsEmpty()) return absl::OkStatus();
  return value.Wrong("empty here, or left out: it is not supported");
}

// A parameter of beam search, which is not supported.
absl::Status MustBeLengthPenaltyOne(const Value& value, RequestBuilder&) {
  if (value.Number() == 1.0) return absl::OkStatus();
  return value.Wrong("1 here, or left out: there is no beam search");
}

absl::Status MustBeOne(const Value& value, RequestBuilder&) {
  ORCD_ASSIGN_OR_RETURN(const uint32_t number, value.Count());
  if (number == 1) return absl::OkStatus();
  return value.Wrong("1: an answer has one text; send a request for each, with a seed of its own");
}

absl::Status SetTopK(const Value& value, RequestBuilder& request) {
  // Both -1 and 0 turn top_k off.
  if (value.Number() == -1.0) return absl::OkStatus();
  return SetCount<&RequestBuilder::SetTopK>(value, request);
}

absl::Status SetSeed(const Value& value, RequestBuilder& request) {
  const std::optional<double> real = value.Number();
  // A negative seed asks for a random one.
  if (real && *real < 0 && *real == std::floor(*real)) return absl::OkStatus();
  const std::optional<uint64_t> number = value.Unsigned();
  if (!number) {
    return value.Wrong("a whole number up to 18446744073709551615, or a negative one for any seed");
  }
  request.sampling().seed = *number;
  return absl::OkStatus();
}

absl::Status SetIgnoreEos(const Value& value, RequestBuilder& request) {
  ORCD_ASSIGN_OR_RETURN(request.stop().ignore_eog, value.Bool());
  return absl::OkStatus();
}

absl::Status SetSkipSpecialTokens(const Value& value, RequestBuilder& request) {
  ORCD_ASSIGN_OR_RETURN(const bool skip, value.Bool());
  request.request().show_special_tokens = !skip;
  return absl::OkStatus();
}

absl::Status SetSpeculation(const Value& value, RequestBuilder& request) {
  ORCD_ASSIGN_OR_RETURN(request.request().speculate, value.Bool());
  return absl::OkStatus();
}

absl::Status SetStop(const Value& value, RequestBuilder& request) {
  return value.ForEachElement([&](const Value& element) -> absl::Status {
    ORCD_ASSIGN_OR_RETURN(request.stop().strings.emplace_back(), element.Text());
    return absl::OkStatus();
  });
}

absl::Status SetStopTokenIds(const Value& value, RequestBuilder& request) {
  return value.ForEachElement([&](const Value& element) -> absl::Status {
    ORCD_ASSIGN_OR_RETURN(const uint32_t id, element.Count());
    request.stop().ids.push_back(static_cast<int32_t>(id));
    return absl::OkStatus();
  });
}

absl::Status SetLogitBias(const Value& value, RequestBuilder& request) {
  return value.ForEachMember([&](const std::string& name, const Value& bias) -> absl::Status {
    uint32_t id = 0;
    if (!absl::SimpleAtoi(name, &id)) return value.Wrong("an object whose names are token ids");
    ORCD_ASSIGN_OR_RETURN(const float number, bias.Float());
    request.SetLogitBias(id, number);
    return absl::OkStatus();
  });
}

absl::Status SetRule(const Value& value, decltype(ConstraintSpec::rule) rule,
                     RequestBuilder& request) {
  if (request.constraint() != nullptr) {
    return InvalidField(value.field(), absl::StrCat("comes beside ", request.constraint()->field,
                                                    "; send one of them"));
  }
  request.SetConstraint(
      ConstraintSpec{.rule = std::move(rule), .start = {}, .field = value.field()},
      ConstraintStart::kAfterThinking);
  return absl::OkStatus();
}

absl::Status SetJsonSchema(const Value& value, RequestBuilder& request) {
  ORCD_ASSIGN_OR_RETURN(std::string schema, value.Document());
  return SetRule(value, JsonSchemaRule{std::move(schema)}, request);
}

absl::Status SetJsonObject(const Value& value, RequestBuilder& request) {
  ORCD_ASSIGN_OR_RETURN(const bool is_asked, value.Bool());
  return is_asked ? SetRule(value, JsonObjectRule{}, request) : absl::OkStatus();
}

absl::Status SetRegex(const Value& value, RequestBuilder& request) {
  ORCD_ASSIGN_OR_RETURN(std::string expression, value.Text());
  return SetRule(value, RegexRule{std::move(expression)}, request);
}

absl::Status SetGrammar(const Value& value, RequestBuilder& request) {
  ORCD_ASSIGN_OR_RETURN(std::string grammar, value.Text());
  return SetRule(value, GrammarOf(std::move(grammar)), request);
}

absl::Status SetChoice(const Value& value, RequestBuilder& request) {
  ChoiceRule rule;
  ORCD_RETURN_IF_ERROR(value.ForEachElement([&](const Value& element) -> absl::Status {
    ORCD_ASSIGN_OR_RETURN(rule.choices.emplace_back(), element.Text());
    return absl::OkStatus();
  }));
  return SetRule(value, std::move(rule), request);
}

absl::Status SetStructuralTag(const Value& value, RequestBuilder& request) {
  ORCD_ASSIGN_OR_RETURN(const std::string document, value.Document());
  ORCD_ASSIGN_OR_RETURN(StructuralTagRule rule, ParseStructuralTag(document, value.field()));
  return SetRule(value, std::move(rule), request);
}

struct Parameter {
  const char* name;
  Setter set;
};

// The members of vLLM's StructuredOutputsParams that are a rule. The others are switches, which may
// be off.
constexpr Parameter kStructuredOutputs[] = {
    {"json", SetJsonSchema}, {"json_object", SetJsonObject}, {"regex", SetRegex},
    {"grammar", SetGrammar}, {"choice", SetChoice},          {"structural_tag", SetStructuralTag},
};

absl::Status SetStructuredOutputs(const Value& value, RequestBuilder& request) {
  return value.ForEachField([&](const std::string& name, const Value& member) -> absl::Status {
    for (const Parameter& rule : kStructuredOutputs) {
      if (name == rule.name) return rule.set(member, request);
    }
    if (!member.Bool().value_or(true)) return absl::OkStatus();
    return InvalidField(value.field(),
                        absl::StrCat("has ", Quoted(name),
                                     ", which is not supported; leave it out. Supported: json, "
                                     "json_object, regex, grammar, choice, structural_tag"));
  });
}

// OpenAI's.
absl::Status SetResponseFormat(const Value& value, RequestBuilder& request) {
  const std::optional<Value> named = value.Member("type");
  if (!named) return value.Wrong("an object with a type");
  ORCD_ASSIGN_OR_RETURN(const std::string type, named->Text());
  if (type == "text") return absl::OkStatus();
  if (type == "json_object") return SetRule(value, JsonObjectRule{}, request);
  if (type == "structural_tag") return SetStructuralTag(value, request);
  if (type != "json_schema") {
    return named->Wrong("text, json_object, json_schema or structural_tag");
  }
  const std::optional<Value> wrapper = value.Member("json_schema");
  const std::optional<Value> schema = wrapper ? wrapper->Member("schema") : std::nullopt;
  if (!schema) return value.Wrong("an object with json_schema.schema, as its type says");
  return SetJsonSchema(*schema, request);
}

constexpr Parameter kParameters[] = {
    {"temperature", SetFloat<&SamplingParams::temperature>},
    {"top_p", SetFloat<&SamplingParams::top_p>},
    {"top_k", SetTopK},
    {"min_p", SetFloat<&SamplingParams::min_p>},
    {"repetition_penalty", SetFloat<&SamplingParams::repetition_penalty>},
    {"frequency_penalty", SetFloat<&SamplingParams::frequency_penalty>},
    {"presence_penalty", SetFloat<&SamplingParams::presence_penalty>},
    {"logit_bias", SetLogitBias},
    {"seed", SetSeed},
    {"max_tokens", SetCount<&RequestBuilder::SetMaxTokens>},
    {"min_tokens", SetCount<&RequestBuilder::SetMinTokens>},
    {"stop", SetStop},
    {"stop_token_ids", SetStopTokenIds},
    {"ignore_eos", SetIgnoreEos},
    {"n", MustBeOne},
    {"best_of", MustBeOne},
    {"detokenize", MustBe<true>},
    {"skip_special_tokens", SetSkipSpecialTokens},
    {"include_stop_str_in_output", MustBe<false>},
    {"speculation", SetSpeculation},
    {"json_schema", SetJsonSchema},
    {"json_object", SetJsonObject},
    {"regex", SetRegex},
    {"grammar", SetGrammar},
    {"choice", SetChoice},
    {"structural_tag", SetStructuralTag},
    {"structured_outputs", SetStructuredOutputs},
    // Older names.
    {"guided_decoding", SetStructuredOutputs},
    {"guided_json", SetJsonSchema},
    {"guided_regex", SetRegex},
    {"guided_grammar", SetGrammar},
    {"guided_choice", SetChoice},
    {"response_format", SetResponseFormat},
};

// Parameters of vLLM, including older versions, whose function is not supported: accepted only with
// the value that does not ask for it.
constexpr Parameter kNeutralParameters[] = {
    // No blanks are put between special tokens, as by the fast tokenizers of Hugging Face.
    {"spaces_between_special_tokens", MustBeBool},
    {"use_beam_search", MustBe<false>},
    {"early_stopping", MustBe<false>},
    {"length_penalty", MustBeLengthPenaltyOne},
    {"flat_logprobs", MustBe<false>},
    {"bad_words", MustBeEmpty},
    {"logits_processors", MustBeEmpty},
    {"extra_args", MustBeEmpty},
    {"lora_name", MustBeEmpty},
};

// Null if the name is in neither table.
const Parameter* Find(const std::string& name) {
  for (const std::span<const Parameter> table :
       {std::span<const Parameter>(kParameters), std::span<const Parameter>(kNeutralParameters)}) {
    for (const Parameter& parameter : table) {
      if (name == parameter.name) return &parameter;
    }
  }
  return nullptr;
}

std::string Names() {
  std::string names;
  for (const Parameter& parameter : kParameters) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", parameter.name);
  }
  return names;
}

}  // namespace

absl::Status SamplingParameters::AddJson(const std::string& text) {
  if (text.empty()) return absl::OkStatus();
  const JsonShape shape = ScanJson(text, kMaxDepth);
  if (shape.too_deep) {
    return InvalidField(kSamplingParameters,
                        absl::StrCat("has more than ", kMaxDepth,
                                     " objects and lists in each other; a schema may have 64"));
  }
  if (shape.twice) {
    return InvalidField(kSamplingParameters,
                        absl::StrCat("has ", Quoted(*shape.twice), " twice; send it once"));
  }
  const Json parameters = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  // The parser would ignore everything after a NUL.
  const bool has_nul = text.find('\0') != std::string::npos;
  if (parameters.is_null() && !has_nul) return absl::OkStatus();
  if (!parameters.is_object() || has_nul) {
    return InvalidField(
        kSamplingParameters,
        "is no JSON object; send one such as {\"temperature\": 0.7, \"max_tokens\": "
        "100}");
  }
  for (const auto& [name, value] : parameters.items()) {
    ORCD_RETURN_IF_ERROR(Add(kSamplingParameters, name, value));
  }
  return absl::OkStatus();
}

absl::Status SamplingParameters::AddParameter(const std::string& name,
                                              const inference::InferParameter& value) {
  Json translated;
  switch (value.parameter_choice_case()) {
    case inference::InferParameter::kBoolParam:
      translated = value.bool_param();
      break;
    case inference::InferParameter::kInt64Param:
      translated = value.int64_param();
      break;
    case inference::InferParameter::kStringParam:
      translated = value.string_param();
      break;
    case inference::InferParameter::kDoubleParam:
      translated = value.double_param();
      break;
    case inference::InferParameter::kUint64Param:
      translated = value.uint64_param();
      break;
    case inference::InferParameter::PARAMETER_CHOICE_NOT_SET:
      break;
  }
  return Add("parameters", name, translated);
}

absl::Status SamplingParameters::Add(std::string_view source, const std::string& name,
                                     const Json& value) {
  // A null parameter counts as absent, whatever its name.
  if (value.is_null()) return absl::OkStatus();
  const Parameter* const parameter = Find(name);
  if (parameter == nullptr) {
    return InvalidField(
        source, absl::StrCat("has ", Quoted(name),
                             ", which is not supported; leave it out. Supported: ", Names()));
  }
  if (!seen_.insert(name).second) {
    return InvalidField(source, absl::StrCat("has ", Quoted(name), " again, which came in ",
                                             kSamplingParameters, "; send it once"));
  }
  return parameter->set(Value(absl::StrCat(std::string(source), ".", name), value), request_);
}

}  // namespace orcd::kserve
