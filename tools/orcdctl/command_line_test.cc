#include "tools/orcdctl/command_line.h"

#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/orcdctl/exit_codes.h"

namespace orcd::ctl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CommandLineTest : public ::testing::Test {
 protected:
  CommandLineTest() { unsetenv("ORCD_ADDRESS"); }
  ~CommandLineTest() override { unsetenv("ORCD_ADDRESS"); }

  // Parses `args`, which must succeed, and returns the options of the command.
  template <typename Options>
  static Options Parse(const std::vector<std::string>& args) {
    const CommandLineResult result = ParseCommandLine(args);
    EXPECT_TRUE(result.command_line.has_value()) << result.output;
    if (!result.command_line) return {};
    EXPECT_TRUE(std::holds_alternative<Options>(result.command_line->command));
    return std::get<Options>(result.command_line->command);
  }

  static void ExpectUsageError(const std::vector<std::string>& args, const std::string& says) {
    const CommandLineResult result = ParseCommandLine(args);
    EXPECT_FALSE(result.command_line.has_value());
    EXPECT_EQ(result.exit_code, kExitUsage);
    EXPECT_THAT(result.output, HasSubstr(says));
  }
};

TEST_F(CommandLineTest, CredentialsComeFromFlagsAndTheEnvironment) {
  setenv("ORCD_TLS_CA", "/env-ca", 1);
  const auto result =
      ParseCommandLine({"health", "--tls-cert", "/c", "--tls-key", "/k", "--token-file", "/t"});
  unsetenv("ORCD_TLS_CA");
  ASSERT_TRUE(result.command_line.has_value()) << result.output;
  const CredentialFiles& files = result.command_line->credentials;
  EXPECT_EQ(files.ca, "/env-ca");
  EXPECT_EQ(files.certificate, "/c");
  EXPECT_EQ(files.key, "/k");
  EXPECT_EQ(files.token, "/t");
  ExpectUsageError({"health", "--tls-cert", "/c"}, "--tls-key");
  ExpectUsageError({"health", "--tls-cert", "/c", "--tls-key", "/k"}, "--tls-ca");
}

TEST_F(CommandLineTest, ADrainMayAskForTheWorkersExit) {
  EXPECT_TRUE(Parse<DrainOptions>({"drain", "--exit"}).exit);
  EXPECT_FALSE(Parse<DrainOptions>({"drain"}).exit);
}

TEST_F(CommandLineTest, TheAddressComesFromTheFlagThenTheEnvironmentThenTheDefault) {
  EXPECT_EQ(ParseCommandLine({"health"}).command_line->address, "127.0.0.1:50051");
  setenv("ORCD_ADDRESS", "env:1", 1);
  EXPECT_EQ(ParseCommandLine({"health"}).command_line->address, "env:1");
  EXPECT_EQ(ParseCommandLine({"--address", "flag:1", "health"}).command_line->address, "flag:1");
}

TEST_F(CommandLineTest, GlobalFlagsMayStandBeforeAndAfterTheCommand) {
  for (const auto& args :
       std::vector<std::vector<std::string>>{{"--json", "--timeout", "3s", "health", "--ready"},
                                             {"health", "--ready", "--json", "--timeout", "3"}}) {
    const auto result = ParseCommandLine(args);
    ASSERT_TRUE(result.command_line) << result.output;
    EXPECT_TRUE(result.command_line->json);
    EXPECT_EQ(result.command_line->timeout, absl::Seconds(3));
    EXPECT_TRUE(std::get<HealthOptions>(result.command_line->command).ready);
  }
}

TEST_F(CommandLineTest, Load) {
  const auto load =
      Parse<LoadOptions>({"load", "m.gguf", "--id", "m", "--sha256", "ab", "--replace"});
  EXPECT_EQ(load.model, "m.gguf");
  EXPECT_EQ(load.model_id, "m");
  EXPECT_EQ(load.sha256, "ab");
  EXPECT_TRUE(load.replace);
  ExpectUsageError({"load"}, "MODEL");
}

TEST_F(CommandLineTest, GenerateTakesEveryField) {
  const auto o = Parse<GenerateOptions>({"generate",
                                         "hello",
                                         "--temperature",
                                         "0.7",
                                         "--top-k",
                                         "40",
                                         "--top-p",
                                         "0.9",
                                         "--min-p",
                                         "0.05",
                                         "--typical-p",
                                         "0.95",
                                         "--repetition-penalty",
                                         "1.1",
                                         "--frequency-penalty",
                                         "-0.5",
                                         "world",
                                         "--presence-penalty",
                                         "0.25",
                                         "--count-prompt",
                                         "--temperature-first",
                                         "--logit-bias",
                                         "5=-1.5",
                                         "--logit-bias",
                                         "6=2",
                                         "--seed",
                                         "18446744073709551615",
                                         "--max-tokens",
                                         "10",
                                         "--min-tokens",
                                         "2",
                                         "--stop",
                                         "a",
                                         "--stop",
                                         "b c",
                                         "--stop-id",
                                         "7",
                                         "--ignore-eog",
                                         "--logprobs",
                                         "3",
                                         "--prompt-logprobs",
                                         "2",
                                         "--samples",
                                         "4",
                                         "--priority",
                                         "-3",
                                         "--no-cache",
                                         "--cache-salt",
                                         "tenant",
                                         "--no-speculation",
                                         "--request-id",
                                         "r",
                                         "--model-id",
                                         "m",
                                         "--system",
                                         "s",
                                         "--tools",
                                         "t.json",
                                         "--stats",
                                         "--json"});
  EXPECT_THAT(o.prompt, ElementsAre("hello", "world"));
  const auto made = NewGenerateRequest(o);
  ASSERT_TRUE(made.ok());
  const v1::SamplingParams& sampling = made->sampling();
  EXPECT_FLOAT_EQ(sampling.temperature(), 0.7f);
  EXPECT_EQ(sampling.top_k(), 40u);
  EXPECT_FLOAT_EQ(sampling.top_p(), 0.9f);
  EXPECT_FLOAT_EQ(sampling.min_p(), 0.05f);
  EXPECT_FLOAT_EQ(sampling.typical_p(), 0.95f);
  EXPECT_FLOAT_EQ(sampling.repetition_penalty(), 1.1f);
  EXPECT_FLOAT_EQ(sampling.frequency_penalty(), -0.5f);
  EXPECT_FLOAT_EQ(sampling.presence_penalty(), 0.25f);
  EXPECT_TRUE(sampling.count_prompt());
  EXPECT_TRUE(sampling.temperature_first());
  EXPECT_EQ(sampling.logit_bias_size(), 2);
  EXPECT_FLOAT_EQ(sampling.logit_bias().at(5), -1.5f);
  EXPECT_EQ(sampling.seed(), 18446744073709551615u);
  EXPECT_EQ(made->stop().max_tokens(), 10u);
  EXPECT_EQ(made->stop().min_tokens(), 2u);
  EXPECT_THAT(made->stop().strings(), ElementsAre("a", "b c"));
  EXPECT_THAT(made->stop().token_ids(), ElementsAre(7u));
  EXPECT_TRUE(made->stop().ignore_eog());
  EXPECT_EQ(made->logprobs(), 3u);
  EXPECT_EQ(made->prompt_logprobs(), 2u);
  EXPECT_EQ(made->samples(), 4u);
  EXPECT_EQ(made->priority(), -3);
  EXPECT_TRUE(made->cache().disabled());
  EXPECT_EQ(made->cache().salt(), "tenant");
  EXPECT_TRUE(made->has_speculation());
  EXPECT_FALSE(made->speculation());
  EXPECT_EQ(made->request_id(), "r");
  EXPECT_EQ(made->model_id(), "m");
  EXPECT_EQ(o.system, "s");
  EXPECT_EQ(o.tools_file, "t.json");
  EXPECT_TRUE(o.stats);
}

TEST_F(CommandLineTest, GenerateTakesAForm) {
  const ConstraintOptions form =
      Parse<GenerateOptions>(
          {"generate",          "--choice", "[a]",     "--choice", "b",   "--json-schema", "{}",
           "--json-object",     "--regex",  "[a-z]",   "--lark",   "l",   "--ebnf",        "e",
           "--structural-tags", "t",        "--after", "x",        "the", "prompt"})
          .constraint;
  EXPECT_THAT(form.choices, ElementsAre("[a]", "b"));
  EXPECT_EQ(form.json_schema, "{}");
  EXPECT_TRUE(form.json_object);
  EXPECT_EQ(form.regex, "[a-z]");
  EXPECT_EQ(form.lark_file, "l");
  EXPECT_EQ(form.ebnf_file, "e");
  EXPECT_EQ(form.structural_tags_file, "t");
  EXPECT_EQ(form.after, "x");
  EXPECT_EQ(Parse<GenerateOptions>({"generate", "--after-token", "7"}).constraint.after_token, 7u);
  ExpectUsageError({"generate", "--after", "x", "--after-token", "7"}, "--after");
}

TEST_F(CommandLineTest, ARepeatableFlagDoesNotSwallowThePrompt) {
  const auto o = Parse<GenerateOptions>(
      {"generate", "--stop", "x", "--stop-id", "3", "--logit-bias", "1=2", "the", "prompt"});
  EXPECT_THAT(o.stop, ElementsAre("x"));
  EXPECT_THAT(o.stop_ids, ElementsAre(3u));
  EXPECT_THAT(o.logit_bias, ElementsAre("1=2"));
  EXPECT_THAT(o.prompt, ElementsAre("the", "prompt"));
}

TEST_F(CommandLineTest, PromptsThatLookLikeSomethingElse) {
  EXPECT_THAT(Parse<GenerateOptions>({"generate", "health"}).prompt, ElementsAre("health"));
  EXPECT_THAT(Parse<GenerateOptions>({"generate", "-"}).prompt, ElementsAre("-"));
  EXPECT_THAT(Parse<GenerateOptions>({"generate", "--", "--json"}).prompt, ElementsAre("--json"));
  EXPECT_THAT(Parse<GenerateOptions>({"generate"}).prompt, IsEmpty());
  EXPECT_THAT(Parse<GenerateOptions>({"generate", "[a,b]"}).prompt, ElementsAre("[a,b]"));
  EXPECT_THAT(Parse<GenerateOptions>({"generate", "x", "[]", "[,]"}).prompt,
              ElementsAre("x", "[]", "[,]"));
  EXPECT_EQ(Parse<GenerateOptions>({"generate", "x", "--system", "[s, t]"}).system, "[s, t]");
  EXPECT_THAT(Parse<GenerateOptions>({"generate", ""}).prompt, ElementsAre(""));
  EXPECT_THAT(Parse<TokenizeOptions>({"tokenize", "load", "--parse-special"}).text,
              ElementsAre("load"));
}

TEST_F(CommandLineTest, StopStringsAreTakenAsTheyAre) {
  EXPECT_THAT(Parse<GenerateOptions>({"generate", "p", "--stop", "[x,y]", "--stop", "\n"}).stop,
              ElementsAre("[x,y]", "\n"));
}

TEST_F(CommandLineTest, ContradictionsAreUsageErrors) {
  ExpectUsageError({"generate", "p", "--raw", "--system", "s"}, "--system");
  ExpectUsageError({"generate", "p", "--raw", "--interactive"}, "--interactive");
  ExpectUsageError({"generate", "p", "--parse-special"}, "--raw");
  for (const char* of_chats :
       {"--tools", "--documents", "--template-args", "--template", "--continue"}) {
    ExpectUsageError({"generate", "p", "--raw", of_chats, "x"}, of_chats);
  }
  ExpectUsageError({"generate", "--interactive", "--continue", "x"}, "--interactive");
  ExpectUsageError({"generate", "p", "--logprobs", "1"}, "--json");
  ExpectUsageError({"generate", "p", "--prompt-logprobs", "1"}, "--json");
  ExpectUsageError({"generate", "p", "--samples", "2"}, "--json");
  ExpectUsageError({"generate", "p", "--seed", "minus one"}, "--seed");
  ExpectUsageError({"generate", "p", "--max-tokens", "-1"}, "--max-tokens");
  ExpectUsageError({"generate", "p", "--no-such-flag"}, "--no-such-flag");
  ExpectUsageError({}, "subcommand");
  ExpectUsageError({"no-such-command"}, "no-such-command");
  ExpectUsageError({"cancel"}, "ID");
  ExpectUsageError({"--timeout", "soon", "health"}, "--timeout soon");
}

TEST_F(CommandLineTest, HelpAndVersionGoOutWithSuccess) {
  for (const char* flag : {"--help", "--version"}) {
    const auto result = ParseCommandLine({flag});
    EXPECT_FALSE(result.command_line);
    EXPECT_EQ(result.exit_code, kExitOk);
    EXPECT_THAT(result.output, HasSubstr("orcdctl"));
  }
  EXPECT_THAT(ParseCommandLine({"generate", "--help"}).output, HasSubstr("--typical-p"));
}

TEST_F(CommandLineTest, DrainsTimeoutIsItsOwn) {
  const auto result = ParseCommandLine({"--timeout", "90s", "drain", "--timeout", "30s"});
  ASSERT_TRUE(result.command_line) << result.output;
  EXPECT_EQ(result.command_line->timeout, absl::Seconds(90));
  EXPECT_EQ(std::get<DrainOptions>(result.command_line->command).timeout, absl::Seconds(30));
}

TEST_F(CommandLineTest, Timeouts) {
  EXPECT_EQ(*ParseTimeout("500ms"), absl::Milliseconds(500));
  EXPECT_EQ(*ParseTimeout("1.5m"), absl::Seconds(90));
  EXPECT_EQ(*ParseTimeout("0.25"), absl::Milliseconds(250));
  EXPECT_EQ(*ParseTimeout("1e30"), absl::Hours(24 * 365));
  for (const char* wrong : {"", "0", "-1s", "0ms", "nan", "10 apples", "s"}) {
    EXPECT_FALSE(ParseTimeout(wrong).ok()) << wrong;
  }
}

}  // namespace
}  // namespace orcd::ctl
