#include "tools/orcd_inspect/template_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "runtime/gguf/gguf_writer.h"
#include "testing/files.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ParseLocalTimeTest, SetsEveryField) {
  const auto parsed = ParseLocalTime("2025-07-26T13:05:09.25");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->time.tm_year, 125);
  EXPECT_EQ(parsed->time.tm_mon, 6);
  EXPECT_EQ(parsed->time.tm_mday, 26);
  EXPECT_EQ(parsed->time.tm_hour, 13);
  EXPECT_EQ(parsed->time.tm_min, 5);
  EXPECT_EQ(parsed->time.tm_sec, 9);
  EXPECT_EQ(parsed->time.tm_wday, 6);
  EXPECT_EQ(parsed->time.tm_yday, 206);
  EXPECT_EQ(parsed->microseconds, 250000);
  EXPECT_EQ(ParseLocalTime("2025-07-26T13:05:09")->microseconds, 0);
}

TEST(ParseLocalTimeTest, RefusesOthers) {
  for (const std::string_view text :
       {"", "now", "2025-07-26", "2025-07-26 13:05:09", "2025-13-26T13:05:09",
        "2025-07-26T13:05:09Z", "2025-07-26T13:05:09x"}) {
    EXPECT_EQ(ParseLocalTime(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(RenderLinesTest, ALineForEachLine) {
  std::istringstream input(
      R"({"template": "<{{ x }}>", "context": "{\"x\": \"é\"}"}
{"template": "{{ x.y.z }}", "context": "{}"}
{"template": "{{ strftime_now('%H') }}", "context": "{}", "now": "2025-07-26T13:05:09"}
{"template": "{{ 'a' * 1000000000 }}", "context": "{}"}
{"template": "", "context": "[]"}
)");
  std::ostringstream output;
  ASSERT_TRUE(RenderLines({}, input, output).ok());
  std::istringstream lines(output.str());
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line, R"({"spans":[{"begin":0,"end":1,"template":true,"text":"<"},)"
                  R"({"begin":1,"end":3,"template":false,"text":"é"},)"
                  R"({"begin":3,"end":4,"template":true,"text":">"}]})");
  std::getline(lines, line);
  EXPECT_THAT(line, StartsWith(R"({"code":"FAILED_PRECONDITION","error":"line 1: )"));
  std::getline(lines, line);
  EXPECT_THAT(line, HasSubstr(R"("text":"13"}]})"));
  std::getline(lines, line);
  EXPECT_THAT(line, StartsWith(R"({"code":"RESOURCE_EXHAUSTED","error":")"));
  std::getline(lines, line);
  EXPECT_EQ(line, R"({"code":"INVALID_ARGUMENT","error":"the context must be a JSON object"})");
  EXPECT_FALSE(std::getline(lines, line));
}

TEST(RenderLinesTest, RefusesOtherLines) {
  for (const std::string_view line :
       {"", "x", "[]", "{}", R"({"template": ""})", R"({"template": "", "context": {}})",
        R"({"template": 1, "context": "{}"})", R"({"template": "", "context": "{}", "now": 1})",
        R"({"template": "", "context": "{}", "now": "noon"})"}) {
    std::istringstream input("{\"template\": \"\", \"context\": \"{}\"}\n" + std::string(line) +
                             "\n");
    std::ostringstream output;
    const absl::Status status = RenderLines({}, input, output);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << line;
    EXPECT_THAT(std::string(status.message()), StartsWith("line 2")) << line;
    EXPECT_EQ(output.str(), "{\"spans\":[]}\n") << line;
  }
}

class TemplateCommandTest : public ::testing::Test {
 protected:
  TemplateCommandTest() {
    Write("t.jinja", "{{ bos_token }}<|user|>\n{{ messages[0].content }}<|end|>\n");
    Write("c.json", R"({"bos_token": "<s>", "messages": [{"content": "Hi <|end|>"}]})");
  }

  std::string Write(const std::string& name, std::string_view text) {
    std::ofstream(folder_.File(name), std::ios::binary) << text;
    return folder_.File(name);
  }

  // Runs `orcd-inspect template ARGS`; sets output_, errors_ and exit_code_.
  void Run(std::vector<std::string> args) {
    CLI::App app;
    AddTemplateCommand(app, exit_code_);
    args.insert(args.begin(), "template");
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    // The parser takes the arguments in reverse order.
    std::ranges::reverse(args);
    app.parse(std::move(args));
    output_ = ::testing::internal::GetCapturedStdout();
    errors_ = ::testing::internal::GetCapturedStderr();
  }

  TempDir folder_;
  std::string output_;
  std::string errors_;
  int exit_code_ = -1;
};

TEST_F(TemplateCommandTest, WritesExactlyTheText) {
  Run({"--template", folder_.File("t.jinja"), "--context", folder_.File("c.json")});
  EXPECT_EQ(exit_code_, 0) << errors_;
  EXPECT_EQ(output_, "<s><|user|>\nHi <|end|><|end|>");
}

TEST_F(TemplateCommandTest, Spans) {
  Run({"--template", folder_.File("t.jinja"), "--context", folder_.File("c.json"), "--spans"});
  EXPECT_EQ(exit_code_, 0) << errors_;
  EXPECT_EQ(output_, R"({"begin":0,"end":3,"template":false,"text":"<s>"})"
                     "\n"
                     R"({"begin":3,"end":12,"template":true,"text":"<|user|>\n"})"
                     "\n"
                     R"({"begin":12,"end":22,"template":false,"text":"Hi <|end|>"})"
                     "\n"
                     R"({"begin":22,"end":29,"template":true,"text":"<|end|>"})"
                     "\n");
}

TEST_F(TemplateCommandTest, TheTemplateOfAModelFile) {
  GgufWriter writer;
  writer.SetString("tokenizer.chat_template", "{{ strftime_now('%Y-%m-%d %H:%M:%S.%f') }}");
  Run({"--template", Write("m.gguf", writer.Header()), "--context", folder_.File("c.json"), "--now",
       "2025-07-26T13:05:09.25"});
  EXPECT_EQ(exit_code_, 0) << errors_;
  EXPECT_EQ(output_, "2025-07-26 13:05:09.250000");
}

TEST_F(TemplateCommandTest, SaysWhatIsWrong) {
  const std::string good = folder_.File("t.jinja");
  const std::string context = folder_.File("c.json");
  const std::string missing = folder_.File("missing");
  const std::string raises = Write("r.jinja", "{{ raise_exception('No tools here.') }}");
  const std::string broken = Write("b.jinja", "\n{% if %}");
  const std::string list = Write("l.json", "[]");
  const std::string bare = Write("bare.gguf", GgufWriter().Header());
  struct Case {
    std::vector<std::string> args;
    std::string words;
  };
  for (const Case& test : std::vector<Case>{
           {{"--template", missing, "--context", context}, missing + " cannot be read"},
           {{"--template", good, "--context", missing}, missing + " cannot be read"},
           {{"--template", raises, "--context", context}, "No tools here."},
           {{"--template", broken, "--context", context}, broken + ": line 2: "},
           {{"--template", good, "--context", list}, list + ": the context must be a JSON object"},
           {{"--template", bare, "--context", context}, bare + ": "},
           {{"--template", good, "--context", context, "--now", "noon"}, "--now: 'noon' is not"},
           {{"--context", context}, "--template: must be given"},
           {{"--template", good}, "--context: must be given"}}) {
    Run(test.args);
    EXPECT_EQ(exit_code_, 1);
    EXPECT_EQ(output_, "");
    EXPECT_THAT(errors_, StartsWith("orcd-inspect template: "));
    EXPECT_THAT(errors_, HasSubstr(test.words));
  }
}

}  // namespace
}  // namespace orcd
