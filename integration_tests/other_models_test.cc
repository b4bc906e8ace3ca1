// Real models of other families than the default one: SmolLM2 (Llama's architecture) chats in its
// own template, and the base model of Gemma 3 completes text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>

#include "integration_tests/real_model_fixture.h"

namespace orcd::testing {
namespace {

using ::grpc::StatusCode;
using ::testing::HasSubstr;

v1::GenerateRequest Greedy(v1::GenerateRequest request) {
  request.mutable_sampling()->set_temperature(0);
  return request;
}

class SmolLm2Test : public RealModelTest {
 protected:
  SmolLm2Test() : RealModelTest("smollm2-135m-instruct-q4_1.gguf") {}
};

class Gemma3Test : public RealModelTest {
 protected:
  Gemma3Test() : RealModelTest("gemma-3-270m-q4_k_m.gguf") {}
};

// The standard output of orcd-inspect, which stands beside this program. The test fails if it does
// not exit with 0.
std::string Inspect(const std::string& arguments) {
  const std::filesystem::path folder =
      std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::string command = (folder / "orcd-inspect").string() + " " + arguments;
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) {
    ADD_FAILURE() << "cannot run " << command;
    return "";
  }
  std::string output;
  std::array<char, 4096> buffer;
  while (const size_t size = fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), size);
  }
  EXPECT_EQ(pclose(pipe), 0) << command;
  return output;
}

TEST_F(SmolLm2Test, ChatsInItsOwnTemplate) {
  ASSERT_NO_FATAL_FAILURE(Load());
  EXPECT_EQ(description().architecture(), "llama");
  EXPECT_TRUE(description().chat_supported());
  EXPECT_EQ(description().window_layers(), 0u);
  const std::string question = "What is the capital of France?";
  const v1::GenerateRequest request = Greedy(ChatRequest(question, 40));

  v1::TokenizeRequest chat;
  *chat.mutable_chat() = request.chat();
  v1::TokenizeRequest text;
  text.mutable_text()->set_text(
      "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
      "Face<|im_end|>\n<|im_start|>user\n" +
      question + "<|im_end|>\n<|im_start|>assistant\n");
  text.mutable_text()->set_parse_special(true);
  EXPECT_EQ(client().Tokens(chat), client().Tokens(text));

  const Generation first = client().Generate(request);
  ASSERT_TRUE(IsComplete(first));
  EXPECT_THAT(first.text, HasSubstr("Paris"));
  EXPECT_EQ(first.reason(), v1::FINISH_REASON_EOG);
  const Generation again = client().Generate(request);
  ASSERT_TRUE(IsComplete(again));
  EXPECT_EQ(again.ids, first.ids);
}

TEST_F(Gemma3Test, TheBaseModelCompletesTextAndDoesNotChat) {
  EXPECT_THAT(Inspect("check " + model_path().string()), HasSubstr("chat supported: no"));
  ASSERT_NO_FATAL_FAILURE(Load());
  EXPECT_EQ(description().architecture(), "gemma3");
  EXPECT_FALSE(description().chat_supported());
  // Every sixth of the 18 layers attends to all positions.
  EXPECT_EQ(description().window_layers(), 15u);
  EXPECT_EQ(description().window(), 512u);
  const Generation chat = client().Generate(ChatRequest("Hello", 5));
  EXPECT_TRUE(IsError(chat.error, StatusCode::FAILED_PRECONDITION, "CHAT_TEMPLATE_UNKNOWN"));

  const v1::GenerateRequest request = Greedy(TextRequest("January, February, March,", 8));
  const Generation first = client().Generate(request);
  ASSERT_TRUE(IsComplete(first));
  EXPECT_THAT(first.text, HasSubstr("April, May"));
  const Generation again = client().Generate(request);
  ASSERT_TRUE(IsComplete(again));
  EXPECT_EQ(again.ids, first.ids);
}

}  // namespace
}  // namespace orcd::testing
