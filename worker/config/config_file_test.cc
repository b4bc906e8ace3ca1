#include "worker/config/config_file.h"

#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

using Values = std::vector<std::string>;

Values ValuesOf(std::string_view content) {
  const auto settings = ParseConfigFile(content);
  if (!settings.ok()) return {absl::StrCat("error: ", settings.status().message())};
  if (settings->size() != 1) return {absl::StrCat(settings->size(), " settings")};
  return settings->front().values;
}

TEST(ConfigFileTest, Values) {
  struct Case {
    const char* line;
    Values values;
  };
  const Case cases[] = {
      {"k = 3", {"3"}},
      {"k=3", {"3"}},
      {"  k\t=\t3  \r\n", {"3"}},
      {"\"k\" = 3", {"3"}},
      {"k = 0.0.0.0:50051", {"0.0.0.0:50051"}},
      {"k = \"[::1]:0\"", {"[::1]:0"}},
      {"k", {"true"}},
      {"k # on", {"true"}},
      {"k = true", {"true"}},
      {"k =", {}},
      {"k = # nothing", {}},
      {"k = \"\"", {""}},
      {"k = a # comment", {"a"}},
      {"k = a#comment", {"a"}},
      {"k = \"a#b\"", {"a#b"}},
      {"k = 'a#b' # c", {"a#b"}},
      {"k = \"a;b\"", {"a;b"}},
      {"k = \"a = b\"", {"a = b"}},
      {"k = \"two words\"", {"two words"}},
      {"k = \" blanks \"", {" blanks "}},
      {"k = \"a,b\"", {"a,b"}},
      {"k = \"it's\"", {"it's"}},
      {"k = 'say \"x\"'", {"say \"x\""}},
      {"k = 'C:\\dir'", {"C:\\dir"}},
      {R"(k = "\"\\\t\n\u00e9\U0001F600")", {"\"\\\t\n\xC3\xA9\xF0\x9F\x98\x80"}},
      {"k = a, b", {"a", "b"}},
      {"k = a b", {"a", "b"}},
      {"k = a:1,b:2", {"a:1", "b:2"}},
      {"k = \"a\" 'b'", {"a", "b"}},
      {"k = [\"a:1\", 'b#2', c]", {"a:1", "b#2", "c"}},
      {"k = [\"a]b\", \"c,d\"]", {"a]b", "c,d"}},
      {"k = []", {}},
      {"k = [1,]", {"1"}},
      {"k = [ # first\n  \"a\", # one\n\n  \"b\"\n] # end", {"a", "b"}},
      {"[default]\nk = 1", {"1"}},
      {"; ini\n# toml\n\n k = 1", {"1"}},
  };
  for (const Case& c : cases) EXPECT_EQ(ValuesOf(c.line), c.values) << c.line;
}

TEST(ConfigFileTest, AByteOrderMarkIsNoPartOfTheFirstName) {
  const auto settings = ParseConfigFile("\xEF\xBB\xBFmax-seqs = 3\n");
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->front().name, "max-seqs");
  EXPECT_EQ(ParseConfigFile("\xEF\xBB\xBF")->size(), 0u);
}

TEST(ConfigFileTest, SettingsKnowTheirLines) {
  const auto settings = ParseConfigFile("\n# c\na = [1,\n 2]\n\nb = 2\r\nc\n");
  ASSERT_TRUE(settings.ok()) << settings.status();
  ASSERT_EQ(settings->size(), 3u);
  EXPECT_EQ((*settings)[0].line, 3);
  EXPECT_EQ((*settings)[1].line, 6);
  EXPECT_EQ((*settings)[2].line, 7);
}

TEST(ConfigFileTest, ErrorsNameTheLine) {
  struct Case {
    std::string content;
    const char* message;
  };
  const Case cases[] = {
      {"a = 1\nb = \"x", "line 2: a quote (\") is not closed"},
      {"a = 'x\nb = 1", "line 1: a quote (') is not closed"},
      {"a = \"x\"y", "line 1: nothing may follow a closed quote: 'y'"},
      {"a = \"\"\"x\"\"\"", "line 1: nothing may follow a closed quote"},
      {"a = \"\\d\"", "line 1: \\d is no escape"},
      {"a = \"\\u12\"", "line 1: \\u is not followed by 4 hex digits"},
      {"a = \"\\ud800\"", "line 1: \\u is not followed by 4 hex digits"},
      {"\n\na = [1,\n2", "line 3: an array ([) is not closed"},
      {"a = [\"x\" \"y\"]", "line 1: a comma or ] is missing before '\"y\"]'"},
      {"a = [1,,2]", "line 1: a value of the array is missing"},
      {"a = [1] 2", "line 1: nothing may follow an array: '2'"},
      {"a = [::1]:0", "line 1: nothing may follow an array: ':0'; a value that begins with '['"},
      {"a = 1,,2", "line 1: a value of the list is missing"},
      {"a = , 2", "line 1: a value of the list is missing"},
      {"a b", "line 1: '=' is missing after 'a'"},
      {"= 1", "line 1: no setting begins with '= 1'"},
      {"--a = 1\n\n!b = 2", "line 3: no setting begins with '!b = 2'"},
      {"a = 1\n[server]\nb = 2", "line 2: there are no sections: leave '[server]' out"},
      {"a = 1\nb = \xE9\n", "line 2: the file is not UTF-8"},
      {std::string("a = 1\nb = \0\n", 12), "line 2: there is a control character"},
      {"a = \x1b[1m", "line 1: there is a control character"},
      {std::string("\xFF\xFE"
                   "a\0",
                   4),
       "line 1: the file is UTF-16"},
  };
  for (const Case& c : cases) {
    const auto settings = ParseConfigFile(c.content);
    EXPECT_TRUE(absl::IsInvalidArgument(settings.status())) << c.content;
    EXPECT_THAT(std::string(settings.status().message()), StartsWith(c.message)) << c.content;
  }
}

TEST(ConfigFileTest, ErrorsOfFilesNameThem) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/config-file-", getpid());
  std::ofstream(path) << "a = 1\nb = \"\n";
  EXPECT_THAT(ReadConfigFile(path).status().message(),
              HasSubstr(absl::StrCat(path, ", line 2: a quote")));
  std::ofstream(path) << std::string(2 << 20, '#');
  EXPECT_THAT(ReadConfigFile(path).status().message(), HasSubstr("1048576 bytes"));
  unlink(path.c_str());
  EXPECT_THAT(ReadConfigFile(path).status().message(),
              HasSubstr(absl::StrCat(path, " cannot be read: No such file")));
  EXPECT_THAT(ReadConfigFile(::testing::TempDir()).status().message(), HasSubstr("is a directory"));
}

}  // namespace
}  // namespace orcd
