#include "worker/config/quantity.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(QuantityTest, Bytes) {
  struct Case {
    const char* text;
    int64_t bytes;
  };
  for (const Case& c : {Case{"0", 0},
                        Case{"500000000", 500'000'000},
                        Case{"2Gi", int64_t{2} << 30},
                        Case{"2GiB", int64_t{2} << 30},
                        Case{"2gib", int64_t{2} << 30},
                        Case{"2048Mi", int64_t{2} << 30},
                        Case{"512Mi", 512 << 20},
                        Case{"64Ki", 64 << 10},
                        Case{"1Ti", int64_t{1} << 40},
                        Case{"1Pi", int64_t{1} << 50},
                        Case{"1Ei", int64_t{1} << 60},
                        Case{"2G", 2'000'000'000},
                        Case{"2g", 2'000'000'000},
                        Case{"2GB", 2'000'000'000},
                        Case{"2e9", 2'000'000'000},
                        Case{"2E9", 2'000'000'000},
                        Case{"1E", 1'000'000'000'000'000'000},
                        Case{"3K", 3'000},
                        Case{"3k", 3'000},
                        Case{"3M", 3'000'000},
                        Case{"3MB", 3'000'000},
                        Case{"3T", 3'000'000'000'000},
                        Case{"3P", 3'000'000'000'000'000},
                        Case{"7B", 7},
                        Case{"7b", 7},
                        Case{"0.5GiB", 512 << 20},
                        Case{".5Gi", 512 << 20},
                        Case{"1.5GiB", int64_t{3} << 29},
                        Case{"0.001K", 1},
                        Case{"1.9", 1},
                        Case{"0.0", 0},
                        Case{" 2 GiB ", int64_t{2} << 30},
                        Case{"2GiB\n", int64_t{2} << 30}}) {
    const auto bytes = ParseBytes(c.text);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_EQ(*bytes, c.bytes) << c.text;
  }
}

TEST(QuantityTest, WrongBytesSayWhy) {
  struct Case {
    const char* text;
    const char* why;
  };
  for (const Case& c : {Case{"", "it is empty"},
                        Case{"  ", "it is empty"},
                        Case{"lots", "does not begin with a number"},
                        Case{"Gi", "does not begin with a number"},
                        Case{"nan", "does not begin with a number"},
                        Case{"inf", "does not begin with a number"},
                        Case{"+5", "does not begin with a number"},
                        Case{".", "does not begin with a number"},
                        Case{"-5", "it is negative"},
                        Case{"2 buckets", "the unit 'buckets' is none of B"},
                        Case{"2i", "the unit 'i' is none of B"},
                        Case{"2iB", "the unit 'iB' is none of B"},
                        Case{"2GiBB", "the unit 'GiBB' is none of B"},
                        Case{"2KM", "the unit 'KM' is none of B"},
                        Case{"2Gi B", "the unit 'Gi B' is none of B"},
                        Case{"1,5G", "the unit ',5G' is none of B"},
                        Case{"0x10", "the unit 'x10' is none of B"},
                        Case{"500m", "a thousandth to Kubernetes"},
                        Case{"99999999TiB", "2^63 bytes or more"},
                        Case{"8Ei", "2^63 bytes or more"},
                        Case{"9223372036854775808", "2^63 bytes or more"},
                        Case{"1e400", "does not begin with a number"},
                        Case{"0.5", "it is less than one byte"},
                        Case{"0.0001K", "it is less than one byte"},
                        Case{"0.0000000001Gi", "it is less than one byte"}}) {
    const auto bytes = ParseBytes(c.text);
    EXPECT_TRUE(absl::IsInvalidArgument(bytes.status())) << c.text;
    EXPECT_THAT(bytes.status().message(),
                AllOf(HasSubstr(absl::StrCat("'", c.text, "' is not a number of bytes, such as")),
                      HasSubstr(c.why)));
  }
}

TEST(QuantityTest, Shares) {
  for (const auto& [text, share] : {std::pair("0", 0.0), std::pair("1", 1.0),
                                    std::pair("0.25", 0.25), std::pair(" 1e-3 ", 0.001)}) {
    ASSERT_TRUE(ParseShare(text).ok()) << text;
    EXPECT_EQ(*ParseShare(text), share);
  }
  for (const char* text : {"nan", "NaN", "-nan", "inf", "-inf", "1.0001", "-0.1", "2", "", "half",
                           "0.5x", "50%", "1e400"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseShare(text).status())) << text;
  }
}

}  // namespace
}  // namespace orcd
