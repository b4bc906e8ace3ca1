// Tests the errors that a user gets if the GPU is missing, or cannot do what is asked of it.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cuda/device.h"
#include "cuda/device_memory.h"
#include "cuda/gpu_for_test.h"
#include "cuda/shaped_model_for_test.h"
#include "cuda/status.h"
#include "gmock/gmock.h"
#include "runtime/base/error.h"
#include "runtime/cpu/model_for_test.h"

namespace orcd::cuda {
namespace {

using cpu::NanoModel;
using ::testing::HasSubstr;

absl::Status StatusOf(const std::shared_ptr<const Model>& model, const BackendOptions& options) {
  NullLoadObserver observer;
  return CreateBackendForTest(model, options, observer).status();
}

class ErrorsTest : public GpuTest {
 protected:
  static const std::shared_ptr<const Model>& model() {
    static const std::shared_ptr<const Model> model = NanoModel("Q8_0");
    return model;
  }
  static BackendOptions Small() {
    BackendOptions options;
    options.max_seqs = 4;
    options.max_step_tokens = 128;
    options.kv_cache_bytes = 4 << 20;
    return options;
  }
};

// Runs in a process of its own, as CUDA reads the variable only once.
TEST(NoGpuDeathTest, SaysSoAndWhatToDo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const char* const before = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string kept = before == nullptr ? "" : before;
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  const auto tell = [] {
    const absl::Status status = StatusOf(NanoModel("Q8_0"), {});
    std::fprintf(stderr, "%s|%s|%s|%d", std::string(status.message()).c_str(),
                 GetErrorDetails(status).reason.c_str(),
                 absl::StatusCodeToString(status.code()).c_str(), HasDevice() ? 1 : 0);
    std::exit(status.ok() ? 0 : 3);
  };
  EXPECT_EXIT(tell(), ::testing::ExitedWithCode(3),
              "CUDA_VISIBLE_DEVICES.*--backend cpu.*GPU_UNAVAILABLE.FAILED_PRECONDITION.0");
  if (before == nullptr) {
    unsetenv("CUDA_VISIBLE_DEVICES");
  } else {
    setenv("CUDA_VISIBLE_DEVICES", kept.c_str(), 1);
  }
}

TEST(StatusTest, WhatNoRequestCausesIsAFault) {
  const absl::Status status = ToStatus(cudaErrorIllegalAddress, "step 7");
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(GetErrorDetails(status).reason, "GPU_FAULT");
  EXPECT_THAT(std::string(status.message()), HasSubstr("step 7"));
  EXPECT_EQ(GetErrorDetails(ToStatus(cudaErrorMemoryAllocation, "load")).reason,
            "INSUFFICIENT_MEMORY");
}

TEST_F(ErrorsTest, IndexOutOfRange) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  for (const int index : {-1, count, 99}) {
    BackendOptions options = Small();
    options.gpu = absl::StrCat(index);
    const absl::Status status = StatusOf(model(), options);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(GetErrorDetails(status).reason, "GPU_UNAVAILABLE");
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("GPU ", index)));
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("can see ", count)));
  }
  // The process can use the GPU afterwards.
  EXPECT_TRUE(StatusOf(model(), Small()).ok());
}

TEST_F(ErrorsTest, PreflightSaysHowMuchIsMissing) {
  size_t free = 0;
  size_t total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  BackendOptions options = Small();
  options.kv_cache_bytes = int64_t{1} << 42;
  const absl::Status huge = StatusOf(model(), options);
  EXPECT_EQ(huge.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetails(huge).reason, "INSUFFICIENT_MEMORY");
  const std::string message(huge.message());
  EXPECT_THAT(message, HasSubstr("KV cache 4398046511104"));
  EXPECT_THAT(message, HasSubstr(absl::StrCat(total)));
  for (const char* part : {"weights ", "workspace ", "lower kv_cache_bytes"}) {
    EXPECT_THAT(message, HasSubstr(part));
  }
  // Nothing was allocated.
  size_t free_after = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_after, &total), cudaSuccess);
  EXPECT_EQ(free_after, free);

  options.kv_cache_bytes = 100;
  const absl::Status tiny = StatusOf(model(), options);
  EXPECT_EQ(tiny.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(tiny.message()), HasSubstr("holds no block"));
}

TEST_F(ErrorsTest, MemoryThatIsNotThere) {
  const auto memory = DeviceMemory::Allocate(size_t{1} << 50, "a test");
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetails(memory.status()).reason, "INSUFFICIENT_MEMORY");
  EXPECT_THAT(std::string(memory.status().message()), HasSubstr("1125899906842624"));
  // The error does not stay: the next allocation succeeds.
  static_cast<void>(cudaGetLastError());
  EXPECT_TRUE(DeviceMemory::Allocate(1 << 20, "a test").ok());
}

TEST_F(ErrorsTest, OptionsThatCannotBeMeant) {
  const auto field_of = [&](const std::function<void(BackendOptions&)>& change) {
    BackendOptions options = Small();
    change(options);
    const absl::Status status = StatusOf(model(), options);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return GetErrorDetails(status).field;
  };
  EXPECT_EQ(field_of([](BackendOptions& o) { o.max_seqs = 0; }), "max_seqs");
  EXPECT_EQ(field_of([](BackendOptions& o) { o.max_step_tokens = 3; }), "max_step_tokens");
  EXPECT_EQ(field_of([](BackendOptions& o) { o.max_step_tokens = -1; }), "max_step_tokens");
  EXPECT_EQ(field_of([](BackendOptions& o) { o.max_step_tokens = 65'536; }), "max_step_tokens");
  EXPECT_EQ(field_of([](BackendOptions& o) { o.kv_cache_bytes = -1; }), "kv_cache_bytes");
  EXPECT_EQ(field_of([](BackendOptions& o) { o.kv_cache_fraction = 1.5; }), "kv_cache_fraction");
  EXPECT_EQ(field_of([](BackendOptions& o) { o.kv_cache_fraction = -0.1; }), "kv_cache_fraction");
  EXPECT_EQ(field_of([](BackendOptions& o) { o.kv_cache_fraction = std::nan(""); }),
            "kv_cache_fraction");
  EXPECT_EQ(field_of([](BackendOptions& o) { o.kv_type = KvType::kF32; }), "kv_type");
}

TEST_F(ErrorsTest, ShapesThatTheKernelsDoNotTake) {
  for (const int block_tokens : {0, 4, 12, 128}) {
    BackendOptions options = Small();
    options.block_tokens = block_tokens;
    const absl::Status status = StatusOf(model(), options);
    EXPECT_FALSE(status.ok()) << block_tokens;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(block_tokens)));
  }
  const ModelShape good = {
      .name = "good", .hidden = 256, .heads = 4, .kv_heads = 2, .head_dim = 64, .ffn = 512};
  const auto expect_unsupported = [](const ModelShape& shape, const std::string& what) {
    const absl::Status status = StatusOf(MakeShapedModel(shape), Small());
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << shape.name << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
    EXPECT_THAT(std::string(status.message()), HasSubstr("--backend cpu"));
  };
  EXPECT_TRUE(StatusOf(MakeShapedModel(good), Small()).ok());
  ModelShape shape = good;
  shape.name = "heads_of_48";
  shape.head_dim = 48;
  expect_unsupported(shape, "heads of 48");
  shape = good;
  shape.name = "many_heads";
  shape.heads = 20;
  shape.kv_heads = 1;
  expect_unsupported(shape, "20 heads on 1");
  shape = good;
  shape.name = "odd_ffn";
  shape.ffn = 516;
  expect_unsupported(shape, "516");
}

class Canceller : public LoadObserver {
 public:
  void OnProgress(LoadStage, uint64_t done, uint64_t) override {
    if (done > 0) started_ = true;
  }
  bool cancelled() const override { return started_; }

 private:
  std::atomic<bool> started_ = false;
};

TEST_F(ErrorsTest, ACancelledLoadGivesEverythingBack) {
  ASSERT_TRUE(StatusOf(model(), Small()).ok());
  size_t before = 0;
  size_t after = 0;
  size_t total = 0;
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  Canceller observer;
  EXPECT_EQ(CreateBackendForTest(model(), Small(), observer).status().code(),
            absl::StatusCode::kCancelled);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
  EXPECT_EQ(after, before);
  EXPECT_TRUE(StatusOf(model(), Small()).ok());
}

}  // namespace
}  // namespace orcd::cuda
