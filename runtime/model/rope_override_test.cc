#include "runtime/model/rope_override.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "runtime/base/error.h"

namespace orcd {
namespace {

using ::testing::HasSubstr;

TEST(ParseRopeOverrideTest, ReadsEachForm) {
  const struct {
    const char* text;
    RopeOverride wanted;
  } cases[] = {{"yarn:4", {.factor = 4}},
               {"yarn:2.5:32768", {.factor = 2.5f, .original_context = 32768}},
               {R"({"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768})",
                {.factor = 4, .original_context = 32768}},
               {R"({"type": "yarn", "factor": 8, "beta_fast": 16, "beta_slow": 2})",
                {.factor = 8, .beta_fast = 16, .beta_slow = 2}}};
  for (const auto& [text, wanted] : cases) {
    const auto scaling = ParseRopeOverride(text);
    ASSERT_TRUE(scaling.ok()) << text << scaling.status();
    EXPECT_EQ(*scaling, wanted) << text;
  }
}

TEST(ParseRopeOverrideTest, RefusesNonsense) {
  const struct {
    const char* text;
    const char* message;
  } cases[] = {{"", "yarn:FACTOR"},
               {"yarn", "yarn:FACTOR"},
               {"linear:4", "linear:4"},
               {"yarn:four", "yarn:four"},
               {"yarn:", "yarn:FACTOR"},
               {"yarn:4:", "yarn:FACTOR"},
               {"yarn:4:0", "yarn:FACTOR"},
               {"yarn:4:-1", "yarn:FACTOR"},
               {"yarn:4:32768:1", "yarn:FACTOR"},
               {"yarn:1", "is 1 and has to be above 1"},
               {"yarn:0", "is 0"},
               {"yarn:-4", "is -4"},
               {"yarn:nan", "is nan"},
               {"yarn:inf", "is inf"},
               {"yarn:1e9", "at most 1024"},
               {"yarn:4:999999999", "999999999"},
               {"{", "yarn:FACTOR"},
               {R"({"factor":4})", "rope_type"},
               {R"({"rope_type":"linear","factor":4})", "linear"},
               {R"({"rope_type":"yarn"})", "factor is 1"},
               {R"({"rope_type":"yarn","factor":"4"})", "factor"},
               {R"({"rope_type":"yarn","factor":4,"mscale":1})", "mscale"},
               {R"({"rope_type":"yarn","factor":4,"original_max_position_embeddings":0})",
                "original_max_position_embeddings"},
               {R"({"rope_type":"yarn","factor":4,"original_max_position_embeddings":1e30})",
                "original_max_position_embeddings"},
               {R"({"rope_type":"yarn","factor":4,"beta_fast":1,"beta_slow":2})", "beta_slow 2"},
               {R"({"rope_type":"yarn","factor":4,"beta_slow":0})", "beta_slow 0"}};
  for (const auto& [text, message] : cases) {
    const absl::Status status = ParseRopeOverride(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(GetErrorDetails(status).field, "rope_scaling") << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message)) << text;
  }
}

// Four layers: a window, no window, no RoPE, no window.
ModelSpec Mixed() {
  ModelSpec spec;
  spec.context_length = 40960;
  spec.layers.assign(4, {.rope = {.dims = 128, .base = 1e6f}});
  spec.layers[0].window = 512;
  spec.layers[2].rope = {.kind = RopeKind::kNone};
  return spec;
}

TEST(OverrideRopeScalingTest, ScalesLayersWithRopeOverTheWholeContext) {
  ModelSpec spec = Mixed();
  const absl::Status status =
      OverrideRopeScaling({.factor = 4, .original_context = 32768, .beta_fast = 16}, spec);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(spec.context_length, 131072);
  const RopeSpec scaled = {.dims = 128,
                           .base = 1e6f,
                           .scaling = RopeScaling::kYarn,
                           .factor = 4,
                           .original_context = 32768,
                           .beta_fast = 16,
                           .magnitude = 1.138629436111989f};
  EXPECT_EQ(spec.layers[1].rope, scaled);
  EXPECT_EQ(spec.layers[3].rope, scaled);
  EXPECT_EQ(spec.layers[0], Mixed().layers[0]);
  EXPECT_EQ(spec.layers[2], Mixed().layers[2]);
}

TEST(OverrideRopeScalingTest, TheOriginalContextIsTheFiles) {
  ModelSpec spec = Mixed();
  ASSERT_TRUE(OverrideRopeScaling({.factor = 2.5f}, spec).ok());
  EXPECT_EQ(spec.context_length, 102400);
  EXPECT_EQ(spec.layers[1].rope.original_context, 40960);
}

TEST(OverrideRopeScalingTest, RefusesWhatMakesNoSense) {
  const struct {
    const char* message;
    RopeOverride scaling;
    std::function<void(ModelSpec&)> spoil;
  } cases[] = {
      {"has to be above 1", {.factor = 1}, [](ModelSpec&) {}},
      {"no more than the model's context of 40960",
       {.factor = 4, .original_context = 8192},
       [](ModelSpec&) {}},
      {"40960000", {.factor = 1000}, [](ModelSpec& spec) { spec.context_length = 40960000; }},
      {"scales RoPE itself",
       {.factor = 4},
       [](ModelSpec& spec) { spec.layers[3].rope.scaling = RopeScaling::kFactors; }},
      {"no layer with RoPE",
       {.factor = 4},
       [](ModelSpec& spec) {
         for (LayerSpec& layer : spec.layers) layer.window = 512;
       }},
      {"no layer with RoPE", {.factor = 4}, [](ModelSpec& spec) {
         for (LayerSpec& layer : spec.layers) layer.rope = {.kind = RopeKind::kNone};
       }}};
  for (const auto& [message, scaling, spoil] : cases) {
    ModelSpec spec = Mixed();
    spoil(spec);
    const ModelSpec before = spec;
    const absl::Status status = OverrideRopeScaling(scaling, spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_EQ(GetErrorDetails(status).field, "rope_scaling") << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    EXPECT_EQ(spec.layers, before.layers) << message;
    EXPECT_EQ(spec.context_length, before.context_length) << message;
  }
}

}  // namespace
}  // namespace orcd
