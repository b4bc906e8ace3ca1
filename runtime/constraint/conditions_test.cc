#include "runtime/constraint/conditions.h"

#include <gtest/gtest.h>

namespace orcd {
namespace {

TEST(ConditionsTest, HoldAsTheirInputsDo) {
  Conditions conditions;
  const int always = conditions.AddAll();
  const int never = conditions.AddAny();
  const int both = conditions.AddAll();
  conditions.RequireForAll(both, always);
  conditions.RequireForAll(both, never);
  const int either = conditions.AddAny();
  conditions.OfferToAny(either, always);
  conditions.OfferToAny(either, always);
  conditions.OfferToAny(either, never);
  const int twice = conditions.AddAll();
  conditions.RequireForAll(twice, either);
  conditions.RequireForAll(twice, either);
  conditions.Solve();
  EXPECT_TRUE(conditions.Holds(always));
  EXPECT_FALSE(conditions.Holds(never));
  EXPECT_FALSE(conditions.Holds(both));
  EXPECT_TRUE(conditions.Holds(either));
  EXPECT_TRUE(conditions.Holds(twice));
}

TEST(ConditionsTest, DoNotHoldByThemselves) {
  Conditions conditions;
  const int first = conditions.AddAll();
  const int second = conditions.AddAll();
  conditions.RequireForAll(first, second);
  conditions.RequireForAll(second, first);
  // A circle that can be left.
  const int list = conditions.AddAny();
  const int longer = conditions.AddAll();
  conditions.RequireForAll(longer, list);
  conditions.OfferToAny(list, longer);
  conditions.OfferToAny(list, conditions.AddAll());
  conditions.Solve();
  EXPECT_FALSE(conditions.Holds(first));
  EXPECT_FALSE(conditions.Holds(second));
  EXPECT_TRUE(conditions.Holds(list));
  EXPECT_TRUE(conditions.Holds(longer));
}

}  // namespace
}  // namespace orcd
