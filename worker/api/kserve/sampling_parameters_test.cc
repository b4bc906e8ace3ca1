#include "worker/api/kserve/sampling_parameters.h"

#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "worker/api/orcd/build_for_test.h"

namespace orcd::kserve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

absl::Status Add(const std::string& json, RequestBuilder* request = nullptr) {
  RequestBuilder ignored;
  SamplingParameters parameters(request == nullptr ? ignored : *request);
  return parameters.AddJson(json);
}

// The seed is one that nobody asks for.
void ExpectDefaults(RequestBuilder request) {
  ASSERT_TRUE(request.CheckParameters(NanoModel()).ok());
  const SamplingParams& sampling = request.sampling();
  const SamplingParams absent;
  EXPECT_EQ(sampling.temperature, absent.temperature);
  EXPECT_EQ(sampling.top_k, absent.top_k);
  EXPECT_EQ(sampling.top_p, absent.top_p);
  EXPECT_EQ(sampling.min_p, absent.min_p);
  EXPECT_EQ(sampling.repetition_penalty, absent.repetition_penalty);
  EXPECT_EQ(sampling.frequency_penalty, absent.frequency_penalty);
  EXPECT_EQ(sampling.presence_penalty, absent.presence_penalty);
  EXPECT_EQ(sampling.logprobs, absent.logprobs);
  EXPECT_TRUE(sampling.logit_bias.empty());
  EXPECT_GT(sampling.seed + 10, 20u);
  const StopConditions& stop = request.stop();
  EXPECT_TRUE(stop.strings.empty() && stop.ids.empty());
  EXPECT_FALSE(stop.ignore_eog);
  EXPECT_EQ(stop.min_tokens, 0);
  EXPECT_EQ(stop.max_tokens, 0);
  EXPECT_EQ(request.request().samples, 1);
  EXPECT_EQ(request.request().prompt_logprobs, -1);
  EXPECT_FALSE(request.request().show_special_tokens);
  EXPECT_TRUE(request.request().speculate);
}

TEST(SamplingParametersTest, AllThatThereAre) {
  RequestBuilder request;
  ASSERT_TRUE(Add(R"({"temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": 7,
                      "repetition_penalty": 1.5, "frequency_penalty": -1, "presence_penalty": 2,
                      "max_tokens": 9, "min_tokens": 2, "stop": ["a", "b"], "ignore_eos": true,
                      "stop_token_ids": [5, 6], "logit_bias": {"3": -1.5}, "n": 1, "best_of": null,
                      "skip_special_tokens": false, "include_stop_str_in_output": false,
                      "speculation": false})",
                  &request)
                  .ok());
  EXPECT_EQ(request.sampling().temperature, 0.5f);
  EXPECT_EQ(request.sampling().top_p, 0.9f);
  EXPECT_EQ(request.sampling().top_k, 40);
  EXPECT_EQ(request.sampling().min_p, 0.1f);
  EXPECT_EQ(request.sampling().seed, 7u);
  EXPECT_EQ(request.sampling().repetition_penalty, 1.5f);
  EXPECT_EQ(request.sampling().frequency_penalty, -1);
  EXPECT_EQ(request.sampling().presence_penalty, 2);
  ASSERT_TRUE(request.CheckParameters(NanoModel()).ok());
  EXPECT_THAT(request.sampling().logit_bias, ElementsAre(Pair(3, -1.5f)));
  EXPECT_EQ(request.stop().max_tokens, 9);
  EXPECT_EQ(request.stop().min_tokens, 2);
  EXPECT_THAT(request.stop().strings, ElementsAre("a", "b"));
  EXPECT_THAT(request.stop().ids, ElementsAre(5, 6));
  EXPECT_TRUE(request.stop().ignore_eog);
  EXPECT_TRUE(request.request().show_special_tokens);
  EXPECT_FALSE(request.request().speculate);
}

TEST(SamplingParametersTest, AbsentOrNullParametersKeepTheirDefaults) {
  for (const char* json :
       {"", "{}", "null", R"({"temperature": null, "seed": null, "max_tokens": null})",
        R"({"seed": -1})", R"({"seed": -9223372036854775808})", R"({"seed": "-3"})",
        R"({"seed": -2.0})"}) {
    SCOPED_TRACE(json);
    RequestBuilder request;
    EXPECT_TRUE(Add(json, &request).ok());
    ExpectDefaults(request);
  }
}

// Null is absent under any name, also for parameters that are refused with another value.
TEST(SamplingParametersTest, NullIsAbsentEverywhere) {
  for (const char* name : {"temperature",
                           "top_p",
                           "top_k",
                           "min_p",
                           "repetition_penalty",
                           "frequency_penalty",
                           "presence_penalty",
                           "logit_bias",
                           "seed",
                           "max_tokens",
                           "min_tokens",
                           "stop",
                           "stop_token_ids",
                           "ignore_eos",
                           "n",
                           "best_of",
                           "detokenize",
                           "skip_special_tokens",
                           "include_stop_str_in_output",
                           "speculation",
                           "use_beam_search",
                           "early_stopping",
                           "length_penalty",
                           "logprobs",
                           "prompt_logprobs",
                           "guided_json",
                           "guided_regex",
                           "guided_choice",
                           "guided_grammar",
                           "guided_decoding",
                           "structured_outputs",
                           "bad_words",
                           "lora_name",
                           "truncate_prompt_tokens",
                           "allowed_token_ids",
                           "response_format",
                           "priority"}) {
    SCOPED_TRACE(name);
    RequestBuilder request;
    EXPECT_TRUE(Add(absl::StrCat("{\"", name, "\": null}"), &request).ok());
    ExpectDefaults(request);
    SamplingParameters parameters(request);
    EXPECT_TRUE(parameters.AddParameter(name, inference::InferParameter()).ok());
    ExpectDefaults(request);
  }
  RequestBuilder request;
  ASSERT_TRUE(Add(R"({"logit_bias": {"5": null, "6": 1}})", &request).ok());
  ASSERT_TRUE(request.CheckParameters(NanoModel()).ok());
  EXPECT_THAT(request.sampling().logit_bias, ElementsAre(Pair(6, 1)));
  // A parameter that is null in one place may be set in the other.
  SamplingParameters parameters(request);
  inference::InferParameter seed;
  seed.set_int64_param(4);
  ASSERT_TRUE(parameters.AddJson(R"({"seed": null})").ok());
  EXPECT_TRUE(parameters.AddParameter("seed", seed).ok());
  EXPECT_EQ(request.sampling().seed, 4u);
}

TEST(SamplingParametersTest, NeutralValuesAreTakenAndOthersRefusedByName) {
  const struct {
    const char* name;
    std::vector<const char*> neutral;
    std::vector<const char*> refused;
  } cases[] = {
      {"n", {"1", "\"1\""}, {"0", "2"}},
      {"best_of", {"1"}, {"2"}},
      {"use_beam_search", {"false", "\"false\""}, {"true"}},
      {"early_stopping", {"false"}, {"true", "\"never\""}},
      {"length_penalty", {"1", "1.0", "\"1.0\""}, {"0.5", "2", "\"x\"", "true"}},
      {"detokenize", {"true"}, {"false"}},
      {"skip_special_tokens", {"true"}, {"1", "\"maybe\""}},
      {"spaces_between_special_tokens", {"true", "false"}, {"1", "[]"}},
      {"include_stop_str_in_output", {"false"}, {"true"}},
      {"flat_logprobs", {"false"}, {"true"}},
      {"bad_words", {"[]"}, {"[\"x\"]", "5"}},
      {"logits_processors", {"[]"}, {"[\"x\"]"}},
      {"extra_args", {"{}"}, {"{\"a\": 1}"}},
      {"lora_name", {"\"\""}, {"\"x\"", "0"}},
  };
  for (const auto& [name, neutral, refused] : cases) {
    const auto json = [&, name = name](const char* value) {
      return absl::StrCat("{\"", name, "\": ", value, "}");
    };
    for (const char* value : neutral) {
      RequestBuilder request;
      EXPECT_TRUE(Add(json(value), &request).ok()) << json(value);
      ExpectDefaults(request);
    }
    for (const char* value : refused) {
      EXPECT_EQ(GetErrorDetails(Add(json(value))).field, absl::StrCat("sampling_parameters.", name))
          << json(value);
    }
  }
}

// The rule that the parameters ask for. Unset if they ask for none.
std::optional<ConstraintSpec> ConstraintOf(const std::string& json) {
  RequestBuilder request;
  const absl::Status added = Add(json, &request);
  EXPECT_TRUE(added.ok()) << added;
  if (request.constraint() == nullptr) return std::nullopt;
  return *request.constraint();
}

// Properties are generated in the schema's order.
TEST(SamplingParametersTest, ASchemaKeepsItsOrder) {
  constexpr char kSchema[] = R"({"type":"object","properties":{"b":{"enum":[1,[2]]},"a":{}}})";
  const std::string as_text = nlohmann::json(kSchema).dump();
  for (const std::string& value : {std::string(kSchema), as_text}) {
    const struct {
      std::string json;
      const char* field;
    } cases[] = {
        {absl::StrCat(R"({"json_schema": )", value, "}"), "sampling_parameters.json_schema"},
        {absl::StrCat(R"({"guided_json":)", value, R"(, "seed": 1})"),
         "sampling_parameters.guided_json"},
        {absl::StrCat(R"({"structured_outputs": {"json": )", value, " } }"),
         "sampling_parameters.structured_outputs.json"},
        {absl::StrCat(R"({"guided_decoding": )",
                      nlohmann::json(absl::StrCat(R"({"json": )", value, "}")).dump(), "}"),
         "sampling_parameters.guided_decoding.json"},
        {absl::StrCat(R"({"response_format": {"type": "json_schema", "json_schema":
                          {"name": "x", "strict": true, "schema": )",
                      value, "}}}"),
         "sampling_parameters.response_format.json_schema.schema"},
    };
    for (const auto& [json, field] : cases) {
      const auto spec = ConstraintOf(json);
      ASSERT_TRUE(spec) << json;
      EXPECT_EQ(std::get<JsonSchemaRule>(spec->rule).schema, kSchema) << json;
      EXPECT_EQ(spec->field, field);
    }
  }
}

TEST(SamplingParametersTest, EachConstraintBecomesItsRule) {
  for (const char* json :
       {R"({"json_object": true})", R"({"structured_outputs": {"json_object": "true"}})",
        R"({"response_format": {"type": "json_object"}})"}) {
    ASSERT_TRUE(ConstraintOf(json)) << json;
    EXPECT_TRUE(std::holds_alternative<JsonObjectRule>(ConstraintOf(json)->rule)) << json;
  }
  for (const char* json : {R"({"regex": "a+"})", R"({"guided_regex": "a+"})",
                           R"({"structured_outputs": {"regex": "a+", "json": null}})"}) {
    EXPECT_EQ(std::get<RegexRule>(ConstraintOf(json)->rule).expression, "a+") << json;
  }
  for (const char* json : {R"({"choice": ["a", "b"]})", R"({"guided_choice": ["a", "b"]})",
                           R"({"structured_outputs": {"choice": ["a", "b"]}})"}) {
    EXPECT_THAT(std::get<ChoiceRule>(ConstraintOf(json)->rule).choices, ElementsAre("a", "b"));
  }
  for (const char* json :
       {R"({"grammar": "root ::= \"a\""})", R"({"guided_grammar": "root ::= \"a\""})",
        R"({"structured_outputs": {"grammar": "root ::= \"a\"", "disable_any_whitespace": false,
            "backend": null}})"}) {
    EXPECT_EQ(std::get<GrammarRule>(ConstraintOf(json)->rule).dialect, GrammarDialect::kEbnf);
  }
  constexpr char kTags[] =
      R"("structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}], "triggers": ["<f"])";
  for (const std::string& json :
       {absl::StrCat(R"({"structural_tag": {)", kTags, "}}"),
        absl::StrCat(R"({"structured_outputs": {"structural_tag": {)", kTags, "}}}"),
        absl::StrCat(R"({"response_format": {"type": "structural_tag", )", kTags, "}}")}) {
    const auto rule = std::get<StructuralTagRule>(ConstraintOf(json)->rule);
    EXPECT_THAT(rule.triggers, ElementsAre("<f")) << json;
  }
}

TEST(SamplingParametersTest, SomeValuesAskForNoConstraint) {
  for (const char* json :
       {R"({"json_object": false})", R"({"structured_outputs": {}})",
        R"({"structured_outputs": "{}"})", R"({"structured_outputs": {"json_object": false}})",
        R"({"response_format": {"type": "text"}})"}) {
    EXPECT_FALSE(ConstraintOf(json)) << json;
  }
}

TEST(SamplingParametersTest, WrongConstraintsAreNamed) {
  const std::string p = "sampling_parameters.";
  const std::pair<const char*, std::string> cases[] = {
      {R"({"json_schema": [1]})", p + "json_schema"},
      {R"({"json_schema": true})", p + "json_schema"},
      {R"({"json_object": 1})", p + "json_object"},
      {R"({"regex": 5})", p + "regex"},
      {R"({"grammar": {}})", p + "grammar"},
      {R"({"choice": ["a", 5]})", p + "choice[1]"},
      {R"({"choice": {"a": 1}})", p + "choice"},
      {R"({"structural_tag": "{}"})", p + "structural_tag"},
      {R"({"regex": "a", "choice": ["a"]})", p + "choice"},
      {R"({"structured_outputs": {"regex": "a", "choice": ["a"]}})",
       p + "structured_outputs.choice"},
      {R"({"structured_outputs": {"whitespace_pattern": "x"}})", p + "structured_outputs"},
      {R"({"structured_outputs": {"jsn": {}, "disable_fallback": true}})",
       p + "structured_outputs"},
      {R"({"structured_outputs": []})", p + "structured_outputs"},
      {R"({"structured_outputs": "{\"regex\": \"a\""})", p + "structured_outputs"},
      {R"({"structured_outputs": "{\"regex\": \"a\", \"regex\": \"b\"}"})",
       p + "structured_outputs"},
      {R"({"response_format": "json_object"})", p + "response_format"},
      {R"({"response_format": {"type": "xml"}})", p + "response_format.type"},
      {R"({"response_format": {"type": 5}})", p + "response_format.type"},
      {R"({"response_format": {"type": "json_schema"}})", p + "response_format"},
      {R"({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}})",
       p + "response_format"},
  };
  for (const auto& [json, field] : cases) {
    const absl::Status status = Add(json);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << json;
    EXPECT_EQ(GetErrorDetails(status).field, field) << json;
  }
  EXPECT_THAT(std::string(Add(R"({"regex": "a", "choice": ["a"]})").message()),
              HasSubstr("beside sampling_parameters.regex"));
}

// Triton's example client sends numbers as text.
TEST(SamplingParametersTest, NumbersMayBeText) {
  RequestBuilder request;
  ASSERT_TRUE(Add(R"({"temperature": "0.25", "max_tokens": "100", "seed": "18446744073709551615",
                      "ignore_eos": "true", "top_k": "-1", "stop": "x"})",
                  &request)
                  .ok());
  EXPECT_EQ(request.sampling().temperature, 0.25f);
  EXPECT_EQ(request.stop().max_tokens, 100);
  EXPECT_EQ(request.sampling().seed, 18446744073709551615u);
  EXPECT_EQ(request.sampling().top_k, 0);
  EXPECT_TRUE(request.stop().ignore_eog);
  EXPECT_THAT(request.stop().strings, ElementsAre("x"));
}

TEST(SamplingParametersTest, WrongValuesAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"temperature": "hot"})", "sampling_parameters.temperature"},
      {R"({"temperature": true})", "sampling_parameters.temperature"},
      {R"({"temperature": []})", "sampling_parameters.temperature"},
      {R"({"max_tokens": -1})", "sampling_parameters.max_tokens"},
      {R"({"max_tokens": 1.5})", "sampling_parameters.max_tokens"},
      {R"({"max_tokens": 4294967296})", "sampling_parameters.max_tokens"},
      {R"({"top_k": -2})", "sampling_parameters.top_k"},
      {R"({"seed": 0.5})", "sampling_parameters.seed"},
      {R"({"seed": -0.5})", "sampling_parameters.seed"},
      {R"({"seed": 18446744073709551616})", "sampling_parameters.seed"},
      {R"({"stop": 5})", "sampling_parameters.stop"},
      {R"({"stop": ["a", 5]})", "sampling_parameters.stop[1]"},
      {R"({"stop_token_ids": [1, -1]})", "sampling_parameters.stop_token_ids[1]"},
      {R"({"ignore_eos": 1})", "sampling_parameters.ignore_eos"},
      {R"({"logit_bias": [1]})", "sampling_parameters.logit_bias"},
      {R"({"logit_bias": {"x": 1}})", "sampling_parameters.logit_bias"},
      {R"({"logit_bias": {"1": "x"}})", "sampling_parameters.logit_bias['1']"},
      {R"({"n": 2})", "sampling_parameters.n"},
      {R"({"best_of": 3})", "sampling_parameters.best_of"},
      {R"({"truncate_prompt_tokens": 5})", "sampling_parameters"},
      {R"({"logprobs": 1})", "sampling_parameters"},
      {R"({"seed": 1, "seed": 2})", "sampling_parameters"},
      {R"({"logit_bias": {"1": 1, "1": 2}})", "sampling_parameters"},
      {R"({"stop": [["a"]]})", "sampling_parameters.stop[0]"},
      {R"({"stop": ["a", null]})", "sampling_parameters.stop[1]"},
      {R"({"temperature": 1e999})", "sampling_parameters"},
      {R"({"temperature": NaN})", "sampling_parameters"},
      {R"([])", "sampling_parameters"},
      {R"({"seed": 1} x)", "sampling_parameters"},
      {"{\"stop\": \"\xff\"}", "sampling_parameters"},
  };
  for (const auto& [json, field] : cases) {
    const absl::Status status = Add(json);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << json;
    EXPECT_EQ(GetErrorDetails(status).field, field) << json;
  }
  EXPECT_EQ(GetErrorDetails(Add(std::string("{}\0", 3))).field, "sampling_parameters");
  EXPECT_THAT(std::string(Add(R"({"priority": 1})").message()), HasSubstr("'priority'"));
}

TEST(SamplingParametersTest, HostileNestingIsRefused) {
  for (const char* open : {"[", "{\"a\":"}) {
    std::string json = "{\"stop\": ";
    for (int i = 0; i < 200'000; ++i) json += open;
    EXPECT_EQ(GetErrorDetails(Add(json)).field, "sampling_parameters");
  }
}

// The range check refuses infinity, so such numbers need no error of their own.
TEST(SamplingParametersTest, BeyondFloatIsInfinite) {
  RequestBuilder request;
  ASSERT_TRUE(Add(R"({"temperature": 1e300, "frequency_penalty": -1e300})", &request).ok());
  EXPECT_TRUE(std::isinf(request.sampling().temperature));
  EXPECT_TRUE(std::isinf(request.sampling().frequency_penalty));
}

TEST(SamplingParametersTest, ParametersOfTheRequestCountToo) {
  RequestBuilder request;
  SamplingParameters parameters(request);
  ASSERT_TRUE(parameters.AddJson(R"({"seed": 1})").ok());
  inference::InferParameter value;
  value.set_double_param(0.5);
  EXPECT_TRUE(parameters.AddParameter("temperature", value).ok());
  value.set_int64_param(3);
  EXPECT_TRUE(parameters.AddParameter("max_tokens", value).ok());
  value.set_uint64_param(4);
  EXPECT_TRUE(parameters.AddParameter("top_k", value).ok());
  value.set_bool_param(true);
  EXPECT_TRUE(parameters.AddParameter("ignore_eos", value).ok());
  value.set_string_param("x");
  EXPECT_TRUE(parameters.AddParameter("stop", value).ok());
  EXPECT_EQ(request.sampling().temperature, 0.5f);
  EXPECT_EQ(request.stop().max_tokens, 3);
  EXPECT_EQ(request.sampling().top_k, 4u);
  EXPECT_TRUE(request.stop().ignore_eog);
  EXPECT_THAT(request.stop().strings, ElementsAre("x"));
  EXPECT_EQ(GetErrorDetails(parameters.AddParameter("seed", value)).field, "parameters");
  EXPECT_EQ(GetErrorDetails(parameters.AddParameter("priority", value)).field, "parameters");
  EXPECT_EQ(GetErrorDetails(parameters.AddParameter("min_p", value)).field, "parameters.min_p");
}

TEST(SamplingParametersTest, VeryManyTakeNoLongerThanTheirLength) {
  std::string json = R"({"temperature":1)";
  for (int i = 0; json.size() < 4'000'000; ++i) absl::StrAppend(&json, ",\"", i, "\":{}");
  // Processor time, because other processes may take the rest of the wall time.
  const std::clock_t begun = std::clock();
  EXPECT_TRUE(absl::IsInvalidArgument(Add(json + "}")));
  EXPECT_LT((std::clock() - begun) / CLOCKS_PER_SEC, 20);
}

}  // namespace
}  // namespace orcd::kserve
