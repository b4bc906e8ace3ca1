// The GPU, its memory and its errors, for tests. A test that wants a GPU fails if there is none.
#ifndef ORCD_CUDA_GPU_FOR_TEST_H_
#define ORCD_CUDA_GPU_FOR_TEST_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "cuda/cuda_backend.h"
#include "cuda/device.h"
#include "cuda/device_memory.h"
#include "cuda/kernels/common/activations.h"
#include "gtest/gtest.h"
#include "runtime/backend/backend.h"
#include "runtime/gguf/dequantize.h"

namespace orcd::cuda {

// An array in its own VRAM allocation, so that a memory checker sees every access beyond it. Ends
// the process if there is no memory, since nothing can be tested then.
template <typename T>
class DeviceArray {
 public:
  static_assert(std::is_trivially_copyable_v<T>);

  DeviceArray() = default;
  // Sets all bits: a NaN in F16 and in F32, -1 in integers.
  explicit DeviceArray(size_t count) : count_(count) {
    memory_ = *DeviceMemory::Allocate(std::max<size_t>(count, 1) * sizeof(T), "a test");
    Fill(0xFF);
  }
  explicit DeviceArray(std::span<const T> values) : DeviceArray(values.size()) { Write(values); }
  explicit DeviceArray(const std::vector<T>& values)
      : DeviceArray(std::span<const T>(values.data(), values.size())) {}

  T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  size_t size() const { return count_; }

  void Fill(int byte) {
    EXPECT_EQ(cudaMemset(memory_.data(), byte, memory_.size()), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  void Write(std::span<const T> values) {
    EXPECT_LE(values.size(), count_);
    EXPECT_EQ(cudaMemcpy(data(), values.data(), values.size_bytes(), cudaMemcpyHostToDevice),
              cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  // Waits for all work that was started.
  std::vector<T> Read() const {
    std::vector<T> values(count_);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(values.data(), data(), count_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }

 private:
  DeviceMemory memory_;
  size_t count_ = 0;
};

// Name of the kernel set that all tests use: $ORCD_TEST_KERNELS, or `auto`.
inline std::string KernelsForTest() {
  const char* const name = std::getenv("ORCD_TEST_KERNELS");
  return name == nullptr ? "auto" : name;
}

// CreateCudaBackend with these kernels.
inline absl::StatusOr<std::unique_ptr<Backend>> CreateBackendForTest(
    std::shared_ptr<const Model> model, BackendOptions options, LoadObserver& observer) {
  options.kernels = KernelsForTest();
  return CreateCudaBackend(std::move(model), options, observer);
}

// Prepares the GPU's kernels and a stream.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto device = SelectDevice("0", KernelsForTest());
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *device;
    const cudaError_t error = kernels().prepare(traits(), /*vocab=*/1);
    ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
    auto stream = CreateStream();
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream_ = *std::move(stream);
  }

  // Fails the test if the GPU met an error, which every later test would meet too.
  void TearDown() override {
    if (stream_.get() == nullptr) return;
    EXPECT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }

  // Memory of the GPU that nobody holds, once all work that was started has ended.
  static size_t FreeBytes() {
    size_t free = 0;
    size_t total = 0;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    return free;
  }

  cudaStream_t stream() const { return stream_.get(); }
  const KernelSet& kernels() const { return *device_.kernels; }
  const DeviceTraits& traits() const { return device_.traits; }
  int sms() const { return device_.traits.sms; }

 private:
  DeviceInfo device_;
  Stream stream_;
};

// Calls body(index) for [0, count) on all cores; the reference results would take long on one.
template <typename Body>
void InParallel(int64_t count, const Body& body) {
  const int64_t threads =
      std::min<int64_t>(count, std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::thread> helpers;
  helpers.reserve(threads);
  for (int64_t t = 0; t < threads; ++t) {
    helpers.emplace_back([&body, t, threads, count] {
      for (int64_t i = t; i < count; i += threads) body(i);
    });
  }
  for (std::thread& helper : helpers) helper.join();
}

// Index of the first element whose bits differ; nothing if all are the same.
template <typename T>
std::optional<size_t> FirstDifference(std::span<const T> a, std::span<const T> b) {
  if (a.size() != b.size()) return std::min(a.size(), b.size());
  if (std::memcmp(a.data(), b.data(), a.size_bytes()) == 0) return std::nullopt;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0) return i;
  }
  return std::nullopt;
}

template <typename T>
::testing::AssertionResult SameBits(std::span<const T> a, std::span<const T> b) {
  const auto at = FirstDifference(a, b);
  if (!at) return ::testing::AssertionSuccess();
  auto failure = ::testing::AssertionFailure();
  failure << "sizes " << a.size() << " and " << b.size() << " differ at " << *at;
  if (*at < a.size() && *at < b.size()) failure << ": " << +a[*at] << " and " << +b[*at];
  return failure;
}
template <typename T>
::testing::AssertionResult SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return SameBits(std::span<const T>(a), std::span<const T>(b));
}

// True if the value still has all bits set. F16 values are given by their bits.
inline bool IsPoison(uint16_t half) { return half == 0xFFFF; }
inline bool IsPoison(float value) { return std::bit_cast<uint32_t>(value) == 0xFFFFFFFF; }

constexpr int RoundUpTo(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Activations of [tokens, cols] from F32, rounded to F16. Padding tokens are NaN, padding columns
// are zero.
class DeviceActivations {
 public:
  DeviceActivations(int tokens, int cols)
      : tokens_(tokens),
        cols_(cols),
        padded_tokens_(RoundUpTo(tokens, 8)),
        halves_(ActivationBytes(padded_tokens_, cols) / 2) {}
  DeviceActivations(std::span<const float> values, int tokens, int cols)
      : DeviceActivations(tokens, cols) {
    WriteWith([&](int t, int c) { return FloatToHalf(values[size_t{1} * t * cols + c]); });
  }
  DeviceActivations(std::span<const uint16_t> values, int tokens, int cols)
      : DeviceActivations(tokens, cols) {
    WriteWith([&](int t, int c) { return values[size_t{1} * t * cols + c]; });
  }

  Activations view() const {
    return {.data = reinterpret_cast<__half*>(halves_.data()), .tokens = padded_tokens_};
  }
  // The bits of [tokens, cols].
  std::vector<uint16_t> Read() const {
    const std::vector<uint16_t> halves = halves_.Read();
    std::vector<uint16_t> values;
    values.reserve(static_cast<size_t>(tokens_) * cols_);
    for (int t = 0; t < tokens_; ++t) {
      for (int c = 0; c < cols_; ++c) values.push_back(halves[view().Index(t, c)]);
    }
    return values;
  }
  // Number of elements outside of [tokens, cols] that were written to.
  int64_t WrittenOutside() const {
    const std::vector<uint16_t> halves = halves_.Read();
    int64_t written = 0;
    for (int t = 0; t < padded_tokens_; ++t) {
      for (int c = 0; c < RoundUpTo(cols_, kActivationCols); ++c) {
        if ((t >= tokens_ || c >= cols_) && !IsPoison(halves[view().Index(t, c)])) ++written;
      }
    }
    return written;
  }

 private:
  template <typename Half>
  void WriteWith(const Half& half) {
    std::vector<uint16_t> halves(halves_.size(), 0xFFFF);
    InParallel(tokens_, [&](int64_t token) {
      const int t = static_cast<int>(token);
      for (int c = 0; c < RoundUpTo(cols_, kActivationCols); ++c) {
        halves[view().Index(t, c)] = c < cols_ ? half(t, c) : uint16_t{0};
      }
    });
    halves_.Write(halves);
  }

  int tokens_;
  int cols_;
  int padded_tokens_;
  DeviceArray<uint16_t> halves_;
};

inline std::vector<float> ToFloats(std::span<const uint16_t> halves) {
  std::vector<float> values;
  values.reserve(halves.size());
  for (const uint16_t half : halves) values.push_back(HalfToFloat(half));
  return values;
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_GPU_FOR_TEST_H_
