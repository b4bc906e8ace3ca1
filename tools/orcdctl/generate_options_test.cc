#include "tools/orcdctl/generate_options.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd::ctl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(GenerateOptionsTest, OptionsNotGivenStayAbsent) {
  const auto request = NewGenerateRequest({});
  ASSERT_TRUE(request.ok());
  EXPECT_FALSE(request->sampling().has_temperature());
  EXPECT_FALSE(request->sampling().has_top_k());
  EXPECT_FALSE(request->sampling().has_seed());
  EXPECT_EQ(request->sampling().ByteSizeLong(), 0u);
  EXPECT_EQ(request->stop().ByteSizeLong(), 0u);
  EXPECT_FALSE(request->has_logprobs());
  EXPECT_FALSE(request->has_prompt_logprobs());
  EXPECT_FALSE(request->has_samples());
  EXPECT_EQ(request->priority(), 0);
  EXPECT_FALSE(request->has_cache());
  EXPECT_FALSE(request->has_speculation());
  EXPECT_EQ(request->prompt_case(), v1::GenerateRequest::PROMPT_NOT_SET);
}

TEST(GenerateOptionsTest, ZeroIsAValueAndNotAnAbsence) {
  GenerateOptions options;
  options.temperature = 0.0f;
  options.seed = 0;
  options.logprobs = 0;
  const auto request = NewGenerateRequest(options);
  ASSERT_TRUE(request.ok());
  EXPECT_TRUE(request->sampling().has_temperature());
  EXPECT_TRUE(request->sampling().has_seed());
  EXPECT_TRUE(request->has_logprobs());
}

TEST(GenerateOptionsTest, SpeculationIsTurnedOffAlone) {
  GenerateOptions options;
  options.no_speculation = true;
  const auto request = NewGenerateRequest(options);
  ASSERT_TRUE(request.ok());
  EXPECT_TRUE(request->has_speculation());
  EXPECT_FALSE(request->speculation());
}

TEST(GenerateOptionsTest, LogitBias) {
  const auto bias = ParseLogitBias("1234=-2.5");
  ASSERT_TRUE(bias.ok());
  EXPECT_EQ(bias->first, 1234u);
  EXPECT_FLOAT_EQ(bias->second, -2.5f);
  for (const char* wrong : {"", "=", "1", "1=", "=1", "-1=2", "x=1", "1=y", "4294967296=1"}) {
    EXPECT_EQ(ParseLogitBias(wrong).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
}

TEST(GenerateOptionsTest, Tools) {
  const auto array =
      ParseObjects("--tools", R"([{"type": "function", "a": 1}, {"z": 1, "b": "ü"}])");
  ASSERT_TRUE(array.ok());
  EXPECT_THAT(*array, ElementsAre(R"({"type":"function","a":1})", R"({"z":1,"b":"ü"})"));
  const auto one = ParseObjects("--tools", R"({"type":"function"})");
  ASSERT_TRUE(one.ok());
  EXPECT_THAT(*one, ElementsAre(R"({"type":"function"})"));
  for (const char* wrong : {"[{", "3", "[1]", ""}) {
    EXPECT_THAT(std::string(ParseObjects("--documents", wrong).status().message()),
                ::testing::StartsWith("--documents: "));
  }
}

TEST(GenerateOptionsTest, AChatBeginsWithTheSystemMessageIfThereIsOne) {
  EXPECT_EQ(NewChat({}).messages_size(), 0);
  GenerateOptions options;
  options.system = "Be brief.";
  options.template_args = "{}";
  const v1::ChatPrompt chat = NewChat(options);
  ASSERT_EQ(chat.messages_size(), 1);
  EXPECT_EQ(chat.messages(0).role(), v1::CHAT_ROLE_SYSTEM);
  EXPECT_EQ(chat.messages(0).content(), "Be brief.");
  EXPECT_EQ(chat.template_arguments_json(), "{}");
}

TEST(GenerateOptionsTest, TextThatIsNotUtf8CannotBeSent) {
  EXPECT_TRUE(CheckUtf8("text", "héllo 🙂 \xef\xbf\xbd").ok());
  EXPECT_TRUE(CheckUtf8("text", "").ok());
  EXPECT_THAT(std::string(CheckUtf8("--stop", "a\xff").message()), HasSubstr("--stop"));
  EXPECT_FALSE(CheckUtf8("text", "cut \xf0\x9f\x99").ok());
  GenerateOptions options;
  options.stop = {"\xc0\x80"};
  EXPECT_FALSE(NewGenerateRequest(options).ok());
}

}  // namespace
}  // namespace orcd::ctl
