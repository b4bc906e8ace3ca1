#include "worker/api/orcd/request_translation.h"

#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "testing/test_model.h"
#include "worker/api/orcd/build_for_test.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;
using ::testing::MatchesRegex;
using ::testing::Pair;

class RequestTranslationTest : public ::testing::Test {
 protected:
  static const Model& model() { return NanoModel(); }

  static absl::StatusOr<GenerationRequest> Translate(const v1::GenerateRequest& request) {
    return Build(TranslateRequest(request));
  }

  static v1::GenerateRequest Valid() {
    v1::GenerateRequest request;
    request.mutable_tokens()->add_ids(1);
    return request;
  }

  // Returns the path of the refused field.
  static std::string Field(const v1::GenerateRequest& request) {
    const auto translated = Translate(request);
    EXPECT_EQ(translated.status().code(), absl::StatusCode::kInvalidArgument)
        << request.DebugString();
    return GetErrorDetails(translated.status()).field;
  }
};

TEST_F(RequestTranslationTest, HowARequestIsServed) {
  v1::GenerateRequest request = Valid();
  const auto plain = Translate(request);
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->samples, 1);
  EXPECT_EQ(plain->priority, 0);
  EXPECT_EQ(plain->prompt_logprobs, -1);
  EXPECT_TRUE(plain->prefix_cache);
  EXPECT_EQ(plain->cache_salt, "");
  EXPECT_TRUE(plain->resume.empty());
  EXPECT_FALSE(plain->show_special_tokens);
  EXPECT_TRUE(plain->speculate);

  request.set_samples(4);
  request.set_priority(-3);
  request.set_prompt_logprobs(2);
  request.mutable_cache()->set_disabled(true);
  request.mutable_cache()->set_salt("tenant");
  request.add_resume_token_ids(7);
  request.add_resume_token_ids(9);
  request.set_show_special_tokens(true);
  request.set_speculation(false);
  const auto translated = Translate(request);
  ASSERT_TRUE(translated.ok()) << translated.status();
  EXPECT_EQ(translated->samples, 4);
  EXPECT_EQ(translated->priority, -3);
  EXPECT_EQ(translated->prompt_logprobs, 2);
  EXPECT_FALSE(translated->prefix_cache);
  EXPECT_EQ(translated->cache_salt, "tenant");
  EXPECT_THAT(translated->resume, ElementsAre(7, 9));
  EXPECT_TRUE(translated->show_special_tokens);
  EXPECT_FALSE(translated->speculate);
  request.set_speculation(true);
  EXPECT_TRUE(Translate(request)->speculate);

  request.set_prompt_logprobs(21);
  EXPECT_EQ(Field(request), "prompt_logprobs");
}

TEST_F(RequestTranslationTest, DefaultsAreThoseOfTheProto) {
  const auto request = Translate(Valid());
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->id, MatchesRegex("[0-9a-f]{16}"));
  EXPECT_THAT(request->prompt, ElementsAre(1));
  EXPECT_EQ(request->sampling.temperature, 1.0f);
  EXPECT_EQ(request->sampling.top_k, 0);
  EXPECT_EQ(request->sampling.top_p, 1.0f);
  EXPECT_EQ(request->sampling.min_p, 0.0f);
  EXPECT_EQ(request->sampling.typical_p, 1.0f);
  EXPECT_EQ(request->sampling.repetition_penalty, 1.0f);
  EXPECT_EQ(request->sampling.frequency_penalty, 0.0f);
  EXPECT_EQ(request->sampling.presence_penalty, 0.0f);
  EXPECT_FALSE(request->sampling.count_prompt);
  EXPECT_FALSE(request->sampling.temperature_first);
  EXPECT_TRUE(request->sampling.logit_bias.empty());
  EXPECT_EQ(request->sampling.logprobs, -1);
  EXPECT_TRUE(request->stop.strings.empty());
  EXPECT_FALSE(request->stop.ignore_eog);
  EXPECT_EQ(request->stop.min_tokens, 0);
  EXPECT_EQ(request->stop.max_tokens, 0);
  EXPECT_EQ(request->sink, nullptr);
}

TEST_F(RequestTranslationTest, EveryField) {
  v1::GenerateRequest proto;
  proto.set_request_id("a.B_1:-");
  proto.mutable_tokens()->add_ids(3);
  proto.mutable_tokens()->add_ids(2);
  proto.set_logprobs(20);
  v1::SamplingParams& sampling = *proto.mutable_sampling();
  sampling.set_temperature(0);
  sampling.set_top_k(40);
  sampling.set_top_p(0.9f);
  sampling.set_min_p(0.1f);
  sampling.set_typical_p(0.8f);
  sampling.set_repetition_penalty(1.1f);
  sampling.set_frequency_penalty(-2);
  sampling.set_presence_penalty(3);
  sampling.set_count_prompt(true);
  sampling.set_temperature_first(true);
  sampling.set_seed(0);
  for (uint32_t id : {9u, 4u, 700u, 5u}) (*sampling.mutable_logit_bias())[id] = id / 10.0f;
  v1::StopConditions& stop = *proto.mutable_stop();
  stop.add_strings("END");
  stop.add_token_ids(7);
  stop.set_ignore_eog(true);
  stop.set_min_tokens(2);
  stop.set_max_tokens(10);
  const auto request = Translate(proto);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->id, "a.B_1:-");
  EXPECT_THAT(request->prompt, ElementsAre(3, 2));
  EXPECT_EQ(request->sampling.logprobs, 20);
  EXPECT_EQ(request->sampling.temperature, 0);
  EXPECT_EQ(request->sampling.top_k, 40);
  EXPECT_EQ(request->sampling.top_p, 0.9f);
  EXPECT_EQ(request->sampling.min_p, 0.1f);
  EXPECT_EQ(request->sampling.typical_p, 0.8f);
  EXPECT_EQ(request->sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(request->sampling.frequency_penalty, -2);
  EXPECT_EQ(request->sampling.presence_penalty, 3);
  EXPECT_TRUE(request->sampling.count_prompt);
  EXPECT_TRUE(request->sampling.temperature_first);
  EXPECT_EQ(request->sampling.seed, 0u);
  EXPECT_THAT(request->sampling.logit_bias,
              ElementsAre(Pair(4, 0.4f), Pair(5, 0.5f), Pair(9, 0.9f), Pair(700, 70.0f)));
  EXPECT_THAT(request->stop.strings, ElementsAre("END"));
  EXPECT_THAT(request->stop.ids, ElementsAre(7));
  EXPECT_TRUE(request->stop.ignore_eog);
  EXPECT_EQ(request->stop.min_tokens, 2);
  EXPECT_EQ(request->stop.max_tokens, 10);
}

TEST_F(RequestTranslationTest, SeedsAndIdsThatAreMadeUpDiffer) {
  std::set<uint64_t> seeds;
  std::set<std::string> ids;
  for (int i = 0; i < 20; ++i) {
    const auto request = Translate(Valid());
    seeds.insert(request->sampling.seed);
    ids.insert(request->id);
  }
  EXPECT_EQ(seeds.size(), 20u);
  EXPECT_EQ(ids.size(), 20u);
  // All 64 bits are random.
  EXPECT_GT(*seeds.rbegin(), uint64_t{1} << 32);
}

TEST_F(RequestTranslationTest, CountsBeyondInt32MeanNoLimit) {
  v1::GenerateRequest request = Valid();
  request.mutable_sampling()->set_top_k(4'000'000'000);
  request.mutable_stop()->set_max_tokens(4'000'000'000);
  const auto translated = Translate(request);
  ASSERT_TRUE(translated.ok()) << translated.status();
  EXPECT_EQ(translated->sampling.top_k, std::numeric_limits<int32_t>::max());
  EXPECT_EQ(translated->stop.max_tokens, std::numeric_limits<int32_t>::max());
}

TEST_F(RequestTranslationTest, TextIsEncoded) {
  v1::GenerateRequest request;
  request.mutable_text()->set_text("hello <|im_end|>");
  const auto plain = Translate(request);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->prompt, model().tokenizer().Encode("hello <|im_end|>", false));
  request.mutable_text()->set_parse_special(true);
  const auto special = Translate(request);
  EXPECT_EQ(special->prompt, model().tokenizer().Encode("hello <|im_end|>", true));
  EXPECT_LT(special->prompt.size(), plain->prompt.size());
}

TEST_F(RequestTranslationTest, ChatIsRendered) {
  v1::GenerateRequest request;
  v1::ChatMessage* message = request.mutable_chat()->add_messages();
  message->set_role(v1::CHAT_ROLE_USER);
  message->set_content("hi<|im_end|>");
  const auto translated = Translate(request);
  ASSERT_TRUE(translated.ok()) << translated.status();
  ChatRequest chat;
  chat.messages.push_back({.role = ChatRole::kUser, .content = "hi<|im_end|>"});
  EXPECT_EQ(translated->prompt,
            EncodePrompt(model().tokenizer(), *model().chat_template().Render(chat, absl::Now())));

  request.mutable_chat()->set_add_generation_prompt(false);
  EXPECT_LT(Translate(request)->prompt.size(), translated->prompt.size());
}

// A prompt is refused by its bytes alone only if its tokens would be too many as well.
TEST_F(RequestTranslationTest, BytesSayHowManyTokensThereAreAtLeast) {
  const Tokenizer& tokenizer = model().tokenizer();
  std::string longest;
  for (int id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string text(tokenizer.TokenBytes(id).empty() ? tokenizer.TokenText(id)
                                                            : tokenizer.TokenBytes(id));
    if (text.size() > longest.size()) longest = text;
  }
  EXPECT_LE(tokenizer.longest_token_bytes(), longest.size());
  std::string repeated;
  for (int i = 0; i < 10; ++i) repeated += longest;
  for (const std::string& text :
       {std::string("a"), std::string("hello, world"), std::string(1000, ' '), longest, repeated,
        std::string(500, 'a'), std::string("<|im_start|>user\n<|im_end|>")}) {
    v1::GenerateRequest request;
    request.mutable_text()->set_text(text);
    request.mutable_text()->set_parse_special(true);
    EXPECT_TRUE(TranslateRequest(request).must_encode());
    const int64_t least = TranslateRequest(request).LeastPromptTokens(model());
    EXPECT_GE(least, 1);
    EXPECT_LE(least, static_cast<int64_t>(Translate(request)->prompt.size())) << text;
    // A template may leave text out, so only what it has rendered counts.
    request.mutable_chat()->add_messages()->set_content(text);
    request.mutable_chat()->mutable_messages(0)->set_role(v1::CHAT_ROLE_USER);
    RequestBuilder chat = TranslateRequest(request);
    EXPECT_TRUE(chat.must_encode());
    EXPECT_EQ(chat.LeastPromptTokens(model()), 0);
    ASSERT_TRUE(chat.RenderPrompt(model()).ok());
    EXPECT_GE(chat.LeastPromptTokens(model()), least);
    EXPECT_LE(chat.LeastPromptTokens(model()),
              static_cast<int64_t>(Translate(request)->prompt.size()));
  }
  EXPECT_FALSE(TranslateRequest(Valid()).must_encode());
}

// The messages, tools and so on of a request, as the template of the request prints them.
class ChatTranslationTest : public RequestTranslationTest {
 protected:
  static absl::StatusOr<std::vector<int32_t>> Tokens(v1::ChatPrompt chat,
                                                     const std::string& source) {
    chat.set_chat_template(source);
    v1::TokenizeRequest request;
    *request.mutable_chat() = std::move(chat);
    return TranslateInput(std::move(request), model(), {.allow_request_templates = true});
  }
  static std::string Printed(const v1::ChatPrompt& chat, const std::string& source) {
    const auto tokens = Tokens(chat, source);
    if (!tokens.ok()) return GetErrorDetails(tokens.status()).field;
    std::string text;
    for (const int32_t token : *tokens) text += model().tokenizer().TokenBytes(token);
    return text;
  }
  static v1::ChatPrompt Chat(const std::string& content = "Hi") {
    v1::ChatPrompt chat;
    v1::ChatMessage* message = chat.add_messages();
    message->set_role(v1::CHAT_ROLE_USER);
    message->set_content(content);
    return chat;
  }
};

TEST_F(ChatTranslationTest, EveryFieldReachesTheTemplate) {
  v1::ChatPrompt chat = Chat();
  v1::ChatMessage* assistant = chat.add_messages();
  assistant->set_role(v1::CHAT_ROLE_ASSISTANT);
  assistant->set_reasoning_content("Hm.");
  v1::ToolCall* call = assistant->add_tool_calls();
  call->set_name("f");
  call->set_arguments_json(R"({"a": 1})");
  call->set_id("c1");
  v1::ChatMessage* result = chat.add_messages();
  result->set_role(v1::CHAT_ROLE_TOOL);
  result->set_tool_call_id("c1");
  result->set_name("f");
  result->add_content_parts()->set_text("one");
  result->add_content_parts()->set_type("text");
  chat.add_messages()->set_role(v1::CHAT_ROLE_DEVELOPER);
  chat.add_messages()->set_role_name("judge");
  chat.add_messages()->set_role(v1::CHAT_ROLE_SYSTEM);
  chat.add_tools_json(R"({"function": {"name": "f"}})");
  chat.add_documents_json(R"({"text": "d"})");
  chat.set_template_arguments_json(R"({"extra": 3})");
  chat.mutable_tool_choice()->set_function("f");
  EXPECT_EQ(
      Printed(chat,
              "{% for m in messages %}{{ m | tojson }}\n{% endfor %}{{ tools | tojson }}"
              "{{ documents | tojson }}{{ extra }}{{ tool_choice.function.name }}"
              "{{ add_generation_prompt }}"),
      R"({"role": "user", "content": "Hi"})"
      "\n"
      R"({"role": "assistant", "content": "", "reasoning_content": "Hm.", "reasoning": "Hm.", )"
      R"("thinking": "Hm.", "tool_calls": [{"id": "c1", "type": "function", "function": )"
      R"({"name": "f", "arguments": {"a": 1}}}]})"
      "\n"
      R"({"role": "tool", "content": [{"type": "text", "text": "one"}, )"
      R"({"type": "text", "text": ""}], "tool_call_id": "c1", "name": "f"})"
      "\n"
      R"({"role": "developer", "content": ""})"
      "\n"
      R"({"role": "judge", "content": ""})"
      "\n"
      R"({"role": "system", "content": ""})"
      "\n"
      R"([{"function": {"name": "f"}}][{"text": "d"}]3fTrue)");
}

TEST_F(ChatTranslationTest, ToolChoices) {
  const std::pair<v1::ToolChoiceMode, std::string> cases[] = {
      {v1::TOOL_CHOICE_MODE_AUTO, "[{}]auto"},
      {v1::TOOL_CHOICE_MODE_NONE, "nullnone"},
      {v1::TOOL_CHOICE_MODE_REQUIRED, "[{}]required"},
      {v1::TOOL_CHOICE_MODE_UNSPECIFIED, "chat.tool_choice.mode"},
      {static_cast<v1::ToolChoiceMode>(9), "chat.tool_choice.mode"},
  };
  for (const auto& [mode, printed] : cases) {
    v1::ChatPrompt chat = Chat();
    chat.add_tools_json("{}");
    chat.mutable_tool_choice()->set_mode(mode);
    EXPECT_EQ(Printed(chat, "{{ tools | tojson }}{{ tool_choice }}"), printed);
  }
}

TEST_F(ChatTranslationTest, AContinuedMessageBeginsNoOther) {
  constexpr char kSource[] =
      "{% for m in messages %}({{ m.content }}){% endfor %}{% if add_generation_prompt %}>"
      "{% endif %}";
  v1::ChatPrompt chat = Chat("Sure:");
  EXPECT_EQ(Printed(chat, kSource), "(Sure:)>");
  chat.set_continue_final_message(true);
  EXPECT_EQ(Printed(chat, kSource), "(Sure:");
  chat.set_add_generation_prompt(false);
  EXPECT_EQ(Printed(chat, kSource), "(Sure:");
  chat.set_add_generation_prompt(true);
  EXPECT_EQ(Printed(chat, kSource), "chat.continue_final_message");
}

TEST_F(ChatTranslationTest, RequestsBringTemplatesOnlyIfTheWorkerAllowsIt) {
  v1::GenerateRequest request;
  *request.mutable_chat() = Chat();
  request.mutable_chat()->set_chat_template("own");
  const absl::Status refused = Translate(request).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetails(refused).reason, "CHAT_TEMPLATE_NOT_ALLOWED");
  EXPECT_EQ(GetErrorDetails(refused).field, "chat.chat_template");
  const auto allowed = Build(TranslateRequest(request, {.allow_request_templates = true}));
  ASSERT_TRUE(allowed.ok()) << allowed.status();
  EXPECT_EQ(allowed->prompt, model().tokenizer().Encode("own", false));
}

TEST_F(ChatTranslationTest, RefusesWhatATextModelCannotTake) {
  v1::ChatPrompt chat = Chat("");
  chat.mutable_messages(0)->add_content_parts()->set_text("a");
  v1::ContentPart* image = chat.mutable_messages(0)->add_content_parts();
  image->set_type("image_url");
  EXPECT_EQ(Printed(chat, "x"), "chat.messages[0].content_parts[1].type");
  const std::string message(Tokens(chat, "x").status().message());
  EXPECT_THAT(message, ::testing::HasSubstr("'image_url'"));
  image->set_type(std::string(1 << 20, 'i'));
  EXPECT_LT(Tokens(chat, "x").status().message().size(), 300u);

  chat = Chat();
  chat.mutable_messages(0)->set_role_name("judge");
  EXPECT_EQ(Printed(chat, "x"), "chat.messages[0].role_name");
}

// A model whose file recommends sampling parameters.
TEST_F(RequestTranslationTest, TheModelsFileDecidesWhatARequestLeavesOpen) {
  TempDir dir;
  TestModel file = TestModel::Valid();
  file.keys["general.sampling.temp"] = 0.7f;
  file.keys["general.sampling.top_k"] = int32_t{20};
  file.keys["general.sampling.top_p"] = 0.8f;
  file.keys["general.sampling.min_p"] = 0.1f;
  file.keys["general.sampling.penalty_repeat"] = 1.1f;
  file.Write(dir.File("model.gguf"));
  NullLoadObserver observer;
  const auto recommending = Model::Load(dir.File("model.gguf"), {}, observer);
  ASSERT_TRUE(recommending.ok()) << recommending.status();
  const auto sampling = [&](const v1::GenerateRequest& request) {
    RequestBuilder builder = TranslateRequest(request);
    EXPECT_TRUE(builder.CheckParameters(**recommending).ok());
    return builder.sampling();
  };
  v1::GenerateRequest request = Valid();
  const SamplingParams open = sampling(request);
  EXPECT_EQ(open.temperature, 0.7f);
  EXPECT_EQ(open.top_k, 20);
  EXPECT_EQ(open.top_p, 0.8f);
  EXPECT_EQ(open.min_p, 0.1f);
  EXPECT_EQ(open.repetition_penalty, 1.1f);
  // The values that change nothing are values too.
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_top_k(0);
  request.mutable_sampling()->set_top_p(1);
  request.mutable_sampling()->set_min_p(0);
  request.mutable_sampling()->set_repetition_penalty(1);
  const SamplingParams asked = sampling(request);
  EXPECT_EQ(asked.temperature, 0);
  EXPECT_EQ(asked.top_k, 0);
  EXPECT_EQ(asked.top_p, 1);
  EXPECT_EQ(asked.min_p, 0);
  EXPECT_EQ(asked.repetition_penalty, 1);
  // A protocol whose requests are complete does not ask the file.
  RequestBuilder complete;
  ASSERT_TRUE(complete.CheckParameters(**recommending).ok());
  EXPECT_EQ(complete.sampling().temperature, 1);
}

TEST_F(RequestTranslationTest, TokenizeEncodesAsGenerateDoes) {
  v1::TokenizeRequest tokenize;
  v1::GenerateRequest generate;
  for (v1::ChatPrompt* chat : {tokenize.mutable_chat(), generate.mutable_chat()}) {
    v1::ChatMessage* message = chat->add_messages();
    message->set_role(v1::CHAT_ROLE_SYSTEM);
    message->set_content("Be brief.");
  }
  EXPECT_EQ(*TranslateInput(tokenize, model()), Translate(generate)->prompt);
  // Unlike a prompt, the input may be empty.
  tokenize.mutable_text()->set_text("");
  EXPECT_TRUE(TranslateInput(tokenize, model())->empty());
  tokenize.clear_input();
  EXPECT_EQ(GetErrorDetails(TranslateInput(tokenize, model()).status()).field, "input");
}

TEST_F(RequestTranslationTest, RefusesPrompts) {
  EXPECT_EQ(Field(v1::GenerateRequest()), "prompt");
  v1::GenerateRequest request;
  request.mutable_text();
  EXPECT_EQ(Field(request), "text.text");
  request.mutable_tokens();
  EXPECT_EQ(Field(request), "tokens.ids");
  request.mutable_chat();
  EXPECT_EQ(Field(request), "chat.messages");
  v1::ChatMessage* message = request.mutable_chat()->add_messages();
  EXPECT_EQ(Field(request), "chat.messages[0].role");
  message->set_role(static_cast<v1::ChatRole>(99));
  EXPECT_EQ(Field(request), "chat.messages[0].role");
}

TEST_F(RequestTranslationTest, RefusesRequestIds) {
  for (const std::string& id : {std::string(129, 'a'), std::string("two words"), std::string("é"),
                                std::string("a/b"), std::string("a\0b", 3)}) {
    v1::GenerateRequest request = Valid();
    request.set_request_id(id);
    EXPECT_EQ(Field(request), "request_id") << id;
  }
  v1::GenerateRequest request = Valid();
  request.set_request_id(std::string(128, 'a'));
  EXPECT_TRUE(Translate(request).ok());
  EXPECT_FALSE(CheckRequestId("").ok());
}

TEST_F(RequestTranslationTest, RefusesValuesOutOfRange) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  struct Case {
    std::string field;
    std::function<void(v1::SamplingParams&)> set;
  };
  const Case cases[] = {
      {"sampling.temperature", [](auto& s) { s.set_temperature(-1); }},
      {"sampling.temperature", [](auto& s) { s.set_temperature(100.5f); }},
      {"sampling.temperature", [&](auto& s) { s.set_temperature(nan); }},
      {"sampling.top_p", [](auto& s) { s.set_top_p(0); }},
      {"sampling.top_p", [](auto& s) { s.set_top_p(1.5f); }},
      {"sampling.min_p", [](auto& s) { s.set_min_p(-0.1f); }},
      {"sampling.typical_p", [](auto& s) { s.set_typical_p(0); }},
      {"sampling.repetition_penalty", [](auto& s) { s.set_repetition_penalty(0); }},
      {"sampling.frequency_penalty", [](auto& s) { s.set_frequency_penalty(101); }},
      {"sampling.presence_penalty", [&](auto& s) { s.set_presence_penalty(nan); }},
  };
  for (const Case& c : cases) {
    v1::GenerateRequest request = Valid();
    c.set(*request.mutable_sampling());
    EXPECT_EQ(Field(request), c.field);
  }
  v1::GenerateRequest request = Valid();
  (*request.mutable_sampling()->mutable_logit_bias())[4'000'000'000] = 1;
  EXPECT_THAT(Field(request), ::testing::StartsWith("sampling.logit_bias"));
  request = Valid();
  request.set_logprobs(21);
  EXPECT_EQ(Field(request), "logprobs");
}

TEST_F(RequestTranslationTest, RefusesStopConditions) {
  v1::GenerateRequest request = Valid();
  request.mutable_stop()->set_max_tokens(0);
  EXPECT_EQ(Field(request), "stop.max_tokens");
  request = Valid();
  request.mutable_stop()->add_strings("ok");
  request.mutable_stop()->add_strings("");
  EXPECT_EQ(Field(request), "stop.strings[1]");
  request = Valid();
  request.mutable_stop()->add_token_ids(3'000'000'000);
  EXPECT_EQ(Field(request), "stop.token_ids[0]");
  EXPECT_THAT(std::string(Translate(request).status().message()),
              ::testing::HasSubstr("3000000000"));
}

}  // namespace
}  // namespace orcd
