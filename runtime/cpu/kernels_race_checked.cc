// The kernels as a build for ThreadSanitizer runs them. Its checks of each vector that a kernel
// loads would take nearly all of a test's time, so that the kernels are compiled without them, and
// each call is checked here: once for each cache line that it reads or writes. A model's weights
// are not checked, because they are mapped memory that cannot be written.
#if defined(__SANITIZE_THREAD__)
#include <cstddef>
#include <cstdint>

#include "runtime/cpu/kernel_sets.h"

namespace orcd::cpu {
namespace {

// Asked for once: in a virtual machine, asking the processor takes longer than a product.
const KernelTable& Unchecked() {
  static const KernelTable& unchecked = *SupportedKernels().front();
  return unchecked;
}

// Threads share out rows or larger parts of them, so that one access to each cache line shows a
// race.
constexpr size_t kCacheLine = 64;

void Reads(const void* start, size_t count) {
  const volatile char* const bytes = static_cast<const volatile char*>(start);
  for (size_t at = 0; at < count; at += kCacheLine) static_cast<void>(bytes[at]);
}

void ReadsFloats(const float* start, int64_t count) { Reads(start, count * sizeof(float)); }

void WritesFloats(float* start, int64_t count) {
  volatile char* const bytes = reinterpret_cast<volatile char*>(start);
  for (size_t at = 0; at < count * sizeof(float); at += kCacheLine) bytes[at] = bytes[at];
}

void Dequantize(TensorType type, const std::byte* src, int64_t count, float* dst) {
  WritesFloats(dst, count);
  Unchecked().dequantize(type, src, count, dst);
}

void Multiply(const MultiplyArgs& args) {
  for (int64_t row = 0; row < args.weight_rows; ++row) {
    ReadsFloats(args.weights + row * args.weight_stride, args.cols);
  }
  for (int64_t row = 0; row < args.x_rows; ++row) {
    ReadsFloats(args.x + row * args.x_stride, args.cols);
    WritesFloats(args.y + row * args.y_stride, args.weight_rows);
  }
  Unchecked().multiply(args);
}

float Dot(TensorType type, const std::byte* weights, const float* x, int64_t cols) {
  ReadsFloats(x, cols);
  return Unchecked().dot(type, weights, x, cols);
}

template <typename Value, auto KernelTable::*kAttend>
void Attend(const AttendArgs& args) {
  ReadsFloats(args.q, int64_t{args.heads} * args.head_dim);
  for (int group = 0; group < args.groups; ++group) {
    Reads(args.keys[group], kKvGroup * args.head_dim * sizeof(Value));
    Reads(args.values[group], kKvGroup * args.padded_head_dim * sizeof(Value));
  }
  WritesFloats(args.max, args.heads);
  WritesFloats(args.sum, args.heads);
  WritesFloats(args.out, int64_t{args.heads} * args.padded_head_dim);
  (Unchecked().*kAttend)(args);
}

template <auto KernelTable::*kActivation>
void Activate(const float* up, int64_t count, float* gate) {
  ReadsFloats(up, count);
  WritesFloats(gate, count);
  (Unchecked().*kActivation)(up, count, gate);
}

void AdvanceDeltaState(const DeltaArgs& args) {
  WritesFloats(args.state, int64_t{args.head_dim} * args.head_dim);
  for (int64_t t = 0; t < args.tokens; ++t) {
    for (const float* const vector : {args.q, args.k, args.v}) {
      ReadsFloats(vector + t * args.stride, args.head_dim);
    }
    ReadsFloats(args.decay + t * args.factor_stride, 1);
    ReadsFloats(args.beta + t * args.factor_stride, 1);
    WritesFloats(args.out + t * args.out_stride, args.head_dim);
  }
  Unchecked().advance_delta_state(args);
}

void Convolve(const ConvolveArgs& args) {
  for (int tap = 0; tap < args.taps; ++tap) {
    ReadsFloats(args.weights + tap * args.channels, args.channels);
    ReadsFloats(args.inputs[tap], args.channels);
  }
  WritesFloats(args.out, args.channels);
  Unchecked().convolve(args);
}

}  // namespace

const KernelTable kRaceCheckedKernels = {
    .name = "race_checked",
    .dequantize = Dequantize,
    .multiply = Multiply,
    .dot = Dot,
    .attend_f16 = Attend<uint16_t, &KernelTable::attend_f16>,
    .attend_f32 = Attend<float, &KernelTable::attend_f32>,
    .silu_multiply = Activate<&KernelTable::silu_multiply>,
    .gelu_multiply = Activate<&KernelTable::gelu_multiply>,
    .clamped_swiglu_multiply = Activate<&KernelTable::clamped_swiglu_multiply>,
    .sigmoid_multiply = Activate<&KernelTable::sigmoid_multiply>,
    .advance_delta_state = AdvanceDeltaState,
    .convolve = Convolve,
};

}  // namespace orcd::cpu

#endif  // __SANITIZE_THREAD__
