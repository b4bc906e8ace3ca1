#include "worker/observe/trace_context.h"

#include "gtest/gtest.h"

namespace orcd {
namespace {

constexpr char kGood[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(TraceContextTest, ReadsTheStandardsExample) {
  const auto context = ParseTraceparent(kGood);
  ASSERT_TRUE(context);
  EXPECT_EQ(ToHex(context->trace_id), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(context->parent[0], 0x00);
  EXPECT_EQ(context->parent[7], 0xb7);
  EXPECT_TRUE(context->sampled);
  EXPECT_TRUE(context->has_parent());
  std::string unsampled = kGood;
  unsampled.back() = '0';
  EXPECT_FALSE(ParseTraceparent(unsampled)->sampled);
}

TEST(TraceContextTest, ALaterVersionMayGoOn) {
  std::string later = kGood;
  later[1] = '1';
  EXPECT_TRUE(ParseTraceparent(later + "-more"));
  EXPECT_FALSE(ParseTraceparent(later + "more"));
  EXPECT_FALSE(ParseTraceparent(std::string(kGood) + "-more"));
}

TEST(TraceContextTest, AMalformedHeaderIsNoContext) {
  const std::string good = kGood;
  const auto with = [&](size_t at, char c) {
    std::string text = good;
    text[at] = c;
    return text;
  };
  for (const std::string& bad :
       {std::string(), good.substr(1), good.substr(0, 54), with(2, '_'), with(35, '0'),
        with(52, ' '), with(5, 'G'), with(5, 'A'), with(54, 'x'), "ff" + good.substr(2),
        "00-" + std::string(32, '0') + good.substr(35),
        good.substr(0, 36) + std::string(16, '0') + good.substr(52)}) {
    EXPECT_FALSE(ParseTraceparent(bad)) << bad;
  }
}

}  // namespace
}  // namespace orcd
