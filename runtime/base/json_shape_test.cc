#include "runtime/base/json_shape.h"

#include "gtest/gtest.h"

namespace orcd {
namespace {

TEST(JsonShapeTest, CountsWhatStandsInEachOther) {
  EXPECT_TRUE(ScanJson(R"({"a":[1,-2,0.5,null,true,"x"],"b":{}})", 2).is_json);
  EXPECT_FALSE(ScanJson(R"({"a":[1],"b":{}})", 2).too_deep);
  EXPECT_TRUE(ScanJson(R"({"a":[{}]})", 2).too_deep);
  EXPECT_TRUE(ScanJson(std::string(1 << 20, '['), 2).too_deep);
}

TEST(JsonShapeTest, FindsANameThatComesTwiceInOneObject) {
  EXPECT_EQ(ScanJson(R"({"a":1,"b":{"a":2},"c":[{"a":1},{"a":2}]})", 9).twice, std::nullopt);
  EXPECT_EQ(ScanJson(R"({"x":{"a":1,"b":2,"a":1}})", 9).twice, "a");
}

TEST(JsonShapeTest, DetectsTextThatIsNotJson) {
  for (const char* text :
       {"", "{", "[1,]", "{\"a\"}", "no", "{} {}", "{\"a\":\"\xff\"}", "1e999"}) {
    EXPECT_FALSE(ScanJson(text, 9).is_json) << text;
  }
}

}  // namespace
}  // namespace orcd
