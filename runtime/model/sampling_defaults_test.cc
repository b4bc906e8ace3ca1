#include "runtime/model/sampling_defaults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <memory>
#include <string>

#include "runtime/gguf/gguf_writer.h"
#include "testing/files.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

SamplingDefaults Read(const std::function<void(GgufWriter&)>& fill) {
  TempDir dir;
  const std::string path = dir.File("model.gguf");
  GgufWriter writer;
  fill(writer);
  std::ofstream(path, std::ios::binary) << writer.Header();
  const auto gguf = GgufReader::Open(path);
  EXPECT_TRUE(gguf.ok()) << gguf.status();
  return ReadSamplingDefaults(**gguf);
}

TEST(SamplingDefaultsTest, NoKeysNoDefaults) {
  const SamplingDefaults defaults =
      Read([](GgufWriter& w) { w.SetString("general.name", "a model"); });
  EXPECT_TRUE(defaults.params.empty());
  EXPECT_THAT(defaults.warnings, IsEmpty());
}

TEST(SamplingDefaultsTest, EveryKey) {
  const SamplingDefaults defaults = Read([](GgufWriter& w) {
    w.SetF32("general.sampling.temp", 0.7f);
    w.SetI32("general.sampling.top_k", 20);
    w.SetF32("general.sampling.top_p", 0.8f);
    w.SetF32("general.sampling.min_p", 0.05f);
    w.SetF32("general.sampling.penalty_repeat", 1.05f);
  });
  EXPECT_THAT(defaults.warnings, IsEmpty());
  SamplingParams params;
  defaults.params.ApplyTo(params);
  EXPECT_EQ(params.temperature, 0.7f);
  EXPECT_EQ(params.top_k, 20);
  EXPECT_EQ(params.top_p, 0.8f);
  EXPECT_EQ(params.min_p, 0.05f);
  EXPECT_EQ(params.repetition_penalty, 1.05f);
  EXPECT_EQ(params.frequency_penalty, 0);
}

TEST(SamplingDefaultsTest, NumbersOfAnyType) {
  const SamplingDefaults defaults = Read([](GgufWriter& w) {
    w.SetU32("general.sampling.temp", 1);
    w.SetF32("general.sampling.top_k", 40.0f);
  });
  EXPECT_THAT(defaults.warnings, IsEmpty());
  EXPECT_EQ(defaults.params.temperature, 1.0f);
  EXPECT_EQ(defaults.params.top_k, 40);
  EXPECT_EQ(Read([](GgufWriter& w) { w.SetI32("general.sampling.top_k", -1); }).params.top_k, 0);
}

TEST(SamplingDefaultsTest, MalformedValuesAreIgnoredWithAWarning) {
  const SamplingDefaults defaults = Read([](GgufWriter& w) {
    w.SetString("general.sampling.temp", "hot");
    w.SetF32("general.sampling.top_k", 2.5f);
    w.SetF32("general.sampling.top_p", 0.0f);
    w.SetF32("general.sampling.min_p", std::nanf(""));
    w.SetF32("general.sampling.penalty_repeat", 1.5f);
  });
  EXPECT_EQ(defaults.params, PartialSampling{.repetition_penalty = 1.5f});
  EXPECT_THAT(defaults.warnings,
              ElementsAre(StartsWith("general.sampling.temp is no number but str"),
                          StartsWith("general.sampling.top_k is 2.5 (top_k: "),
                          StartsWith("general.sampling.top_p is 0 (top_p: "),
                          StartsWith("general.sampling.min_p is nan (min_p: ")));
}

TEST(SamplingDefaultsTest, KeysWithoutACounterpartAreNamed) {
  EXPECT_THAT(Read([](GgufWriter& w) {
                w.SetI32("general.sampling.mirostat", 0);
                w.SetF32("general.sampling.xtc_probability", 0.0f);
                w.SetI32("general.sampling.penalty_last_n", -1);
                w.SetF32("general.sampling.mirostat_tau", 5.0f);
              }).warnings,
              IsEmpty());
  EXPECT_THAT(Read([](GgufWriter& w) {
                w.SetI32("general.sampling.mirostat", 2);
                w.SetString("general.sampling.sequence", "kpt");
              }).warnings,
              ElementsAre(HasSubstr("sequence"), HasSubstr("mirostat")));
}

}  // namespace
}  // namespace orcd
