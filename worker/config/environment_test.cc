#include "worker/config/environment.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<std::string> kNames = {"listen", "max-seqs", "max-waiting", "worker-id"};

TEST(EnvironmentTest, VariablesAreReadOnceEach) {
  std::string plain = "A=1";
  std::string with_equals = "B=x=y";
  std::string empty = "C=";
  std::string broken = "D";
  char* variables[] = {plain.data(), with_equals.data(), empty.data(), broken.data(), nullptr};
  EXPECT_THAT(ReadEnvironment(variables),
              ElementsAre(std::pair("A", "1"), std::pair("B", "x=y"), std::pair("C", "")));
  EXPECT_TRUE(ReadEnvironment(nullptr).empty());
}

TEST(EnvironmentTest, AVariableIsItsFlagInCapitals) {
  EXPECT_EQ(VariableOf("listen"), "ORCD_LISTEN");
  EXPECT_EQ(VariableOf("max-seqs"), "ORCD_MAX_SEQS");
}

TEST(EnvironmentTest, UnknownVariablesAreNamedWithTheNearest) {
  const Environment environment = {{"ORCD_MAX_SEQ", "1"},      {"ORCD_WORKERID", "w"},
                                   {"ORCD_LISTEN", ":1"},      {"ORCD_BOGUS_THING", "1"},
                                   {"ORCD_MODEL_CACHE", "/m"}, {"ORCD_ORACLE_DIR", "/o"},
                                   {"ORCD_REQUIRE_ALL", "1"},  {"ORCDX", "1"},
                                   {"PATH", "/bin"},           {"ORCD_MAX_WAITNG", "1"}};
  EXPECT_THAT(UnknownVariables(environment, kNames),
              ElementsAre(AllOf(HasSubstr("ORCD_BOGUS_THING"), Not(HasSubstr("meant"))),
                          AllOf(HasSubstr("ORCD_MAX_SEQ "), HasSubstr("be ORCD_MAX_SEQS?")),
                          AllOf(HasSubstr("ORCD_MAX_WAITNG"), HasSubstr("be ORCD_MAX_WAITING?")),
                          AllOf(HasSubstr("ORCD_WORKERID"), HasSubstr("be ORCD_WORKER_ID?"))));
}

TEST(EnvironmentTest, NearestName) {
  EXPECT_EQ(NearestName("max-seq", kNames), "max-seqs");
  EXPECT_EQ(NearestName("max_seqs", kNames), "max-seqs");
  EXPECT_EQ(NearestName("lisen", kNames), "listen");
  EXPECT_EQ(NearestName("colour", kNames), "");
  EXPECT_EQ(NearestName("", kNames), "");
}

}  // namespace
}  // namespace orcd
