#include "worker/base/logging.h"

#include <nlohmann/json.hpp>

#include "gtest/gtest.h"
#include "runtime/base/utf8.h"

namespace orcd {
namespace {

const absl::Time kTime = absl::FromUnixMillis(1'700'000'000'123);

TEST(FormatLogLineTest, Text) {
  EXPECT_EQ(FormatLogLine(LogFormat::kText, kTime, LogLevel::kInfo, "load ended",
                          {{"model", "a.gguf"}, {"seconds", 1.5}, {"layers", 24}, {"ok", true}}),
            "2023-11-14T22:13:20.123Z info load ended model=a.gguf seconds=1.5 layers=24 ok=true");
}

TEST(FormatLogLineTest, TextQuotesWhatCouldBeMistaken) {
  EXPECT_EQ(
      FormatLogLine(LogFormat::kText, kTime, LogLevel::kError, "x",
                    {{"a", "two words"}, {"b", ""}, {"c", "k=v"}, {"d", "line\nbreak \"q\""}}),
      "2023-11-14T22:13:20.123Z error x a=\"two words\" b=\"\" c=\"k=v\" "
      "d=\"line\\nbreak \\\"q\\\"\"");
}

TEST(FormatLogLineTest, Json) {
  const std::string line = FormatLogLine(
      LogFormat::kJson, kTime, LogLevel::kWarning, "say \"hi\"\n",
      {{"path", "a b"}, {"bytes", uint64_t{1} << 40}, {"share", 0.25}, {"on", false}});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const nlohmann::json json = nlohmann::json::parse(line);
  EXPECT_EQ(json["time"], "2023-11-14T22:13:20.123Z");
  EXPECT_EQ(json["level"], "warning");
  EXPECT_EQ(json["msg"], "say \"hi\"\n");
  EXPECT_EQ(json["path"], "a b");
  EXPECT_EQ(json["bytes"], uint64_t{1} << 40);
  EXPECT_EQ(json["share"], 0.25);
  EXPECT_EQ(json["on"], false);
}

TEST(FormatLogLineTest, IsUtf8WhateverItIsGiven) {
  for (LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    const std::string line = FormatLogLine(format, kTime, LogLevel::kInfo, "d\xe9riv\xe9",
                                           {{"file", "\xe4.gguf"}, {"name", "\xc3\xa9"}});
    EXPECT_EQ(FindInvalidUtf8(line), line.size()) << line;
    EXPECT_NE(line.find("d\xEF\xBF\xBDriv"), std::string::npos) << line;
  }
}

TEST(FormatLogLineTest, BytesThatAreNoTextStayOneValidLine) {
  for (LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    const std::string line = FormatLogLine(format, kTime, LogLevel::kInfo, "a\nb",
                                           {{"bytes", std::string_view("\xff\x00\n", 3)}});
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
    EXPECT_EQ(line.find('\xff'), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace orcd
