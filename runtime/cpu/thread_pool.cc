#include "runtime/cpu/thread_pool.h"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace orcd::cpu {
namespace {

// Layout of ThreadPool::state_.
constexpr uint32_t kOpen = 1;
constexpr uint32_t kOneInside = 2;
constexpr uint32_t kInsideMask = 0x7FE;
constexpr uint32_t kOneLoop = 0x800;
constexpr uint32_t kLoopMask = ~(kOneLoop - 1);
static_assert(ThreadPool::kMaxThreads < kInsideMask / kOneInside);

// Spinning this often takes some tens of microseconds on processors whose pause takes a hundred
// cycles: longer than the gaps between the loops of a step, much shorter than the gap between steps
// of an idle worker.
constexpr int kSpins = 600;

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until `state` is no longer `seen`.
void AwaitChange(const std::atomic<uint32_t>& state, uint32_t seen) {
  for (int i = 0; i < kSpins; ++i) {
    if (state.load(std::memory_order_relaxed) != seen) return;
    Pause();
  }
  state.wait(seen, std::memory_order_relaxed);
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  const int workers = std::clamp(threads, 1, kMaxThreads) - 1;
  workers_.reserve(workers);
  for (int i = 0; i < workers; ++i) {
    workers_.emplace_back([this, i] { Work(i + 1); });
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true, std::memory_order_relaxed);
  state_.fetch_add(kOneLoop, std::memory_order_release);
  state_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::ParallelFor(int64_t count, Body body) {
  if (count <= 1 || workers_.empty()) {
    for (int64_t i = 0; i < count; ++i) body(i, 0);
    return;
  }
  job_ = {&body, count};
  next_index_.store(0, std::memory_order_relaxed);
  const uint32_t loop = (state_.load(std::memory_order_relaxed) & kLoopMask) + kOneLoop;
  state_.store(loop | kOpen, std::memory_order_release);
  state_.notify_all();
  TakeIndices(0);
  uint32_t state = state_.fetch_and(~kOpen, std::memory_order_acquire) & ~kOpen;
  while ((state & kInsideMask) != 0) {
    AwaitChange(state_, state);
    state = state_.load(std::memory_order_acquire);
  }
}

void ThreadPool::TakeIndices(int thread) {
  for (;;) {
    const int64_t index = next_index_.fetch_add(1, std::memory_order_relaxed);
    if (index >= job_.count) return;
    (*job_.body)(index, thread);
  }
}

void ThreadPool::Work(int thread) {
  uint32_t finished_loop = 0;
  uint32_t state = state_.load(std::memory_order_acquire);
  for (;;) {
    if (stopping_.load(std::memory_order_relaxed)) return;
    if ((state & kOpen) == 0 || (state & kLoopMask) == finished_loop) {
      AwaitChange(state_, state);
      state = state_.load(std::memory_order_acquire);
      continue;
    }
    if (!state_.compare_exchange_weak(state, state + kOneInside, std::memory_order_acquire)) {
      continue;
    }
    finished_loop = state & kLoopMask;
    TakeIndices(thread);
    state = state_.fetch_sub(kOneInside, std::memory_order_release) - kOneInside;
    if ((state & kOpen) == 0) state_.notify_all();
  }
}

}  // namespace orcd::cpu
