#include "worker/stream/write_queue.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/event.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;

constexpr absl::Duration kLong = absl::Seconds(20);

// Appends its number to a list.
class Numbered : public Writer {
 public:
  Numbered(int number, std::mutex& mutex, std::vector<int>& list)
      : number_(number), mutex_(mutex), list_(list) {}
  void Write() override {
    std::lock_guard lock(mutex_);
    list_.push_back(number_);
  }

 private:
  const int number_;
  std::mutex& mutex_;
  std::vector<int>& list_;
};

TEST(WriteQueueTest, OneThreadKeepsTheOrder) {
  std::mutex mutex;
  std::vector<int> list;
  {
    WriteQueue queue(1);
    for (int i = 0; i < 4; ++i) queue.Enqueue(std::make_shared<Numbered>(i, mutex, list));
  }
  EXPECT_THAT(list, ElementsAre(0, 1, 2, 3));
}

TEST(WriteQueueTest, EveryWriterWritesOnceAndIsReleased) {
  constexpr int kWriters = 1000;
  std::mutex mutex;
  std::vector<int> list;
  std::vector<std::weak_ptr<Numbered>> writers;
  {
    WriteQueue queue(4);
    for (int i = 0; i < kWriters; ++i) {
      auto writer = std::make_shared<Numbered>(i, mutex, list);
      writers.push_back(writer);
      queue.Enqueue(std::move(writer));
    }
  }
  std::sort(list.begin(), list.end());
  for (int i = 0; i < kWriters; ++i) {
    EXPECT_EQ(list[i], i);
    EXPECT_TRUE(writers[i].expired());
  }
}

// Waits in Write until another writer writes.
class Waiting : public Writer {
 public:
  Waiting(Event& mine, Event& other) : mine_(mine), other_(other) {}
  void Write() override {
    mine_.Notify();
    wrote_ = other_.WaitFor(kLong);
  }
  bool wrote() const { return wrote_; }

 private:
  Event& mine_;
  Event& other_;
  std::atomic<bool> wrote_ = false;
};

TEST(WriteQueueTest, ThreadsWriteAtATime) {
  Event first;
  Event second;
  auto one = std::make_shared<Waiting>(first, second);
  auto other = std::make_shared<Waiting>(second, first);
  {
    WriteQueue queue(2);
    queue.Enqueue(one);
    queue.Enqueue(other);
  }
  EXPECT_TRUE(one->wrote());
  EXPECT_TRUE(other->wrote());
}

// Enqueues itself again until it has written `times` times.
class Repeated : public Writer, public std::enable_shared_from_this<Repeated> {
 public:
  Repeated(WriteQueue& queue, int times, Event& done) : queue_(queue), left_(times), done_(done) {}
  void Write() override {
    if (--left_ == 0) return done_.Notify();
    queue_.Enqueue(shared_from_this());
  }

 private:
  WriteQueue& queue_;
  int left_;
  Event& done_;
};

TEST(WriteQueueTest, AWriterMayEnqueueItselfAgain) {
  Event done;
  WriteQueue queue(2);
  queue.Enqueue(std::make_shared<Repeated>(queue, 100, done));
  EXPECT_TRUE(done.WaitFor(kLong));
}

TEST(WriteQueueTest, SmallMachinesHaveOneThread) {
  EXPECT_EQ(WriteQueue::ThreadsFor(1), 1);
  EXPECT_EQ(WriteQueue::ThreadsFor(2), 1);
  EXPECT_EQ(WriteQueue::ThreadsFor(16), 4);
  EXPECT_EQ(WriteQueue::ThreadsFor(256), 4);
}

}  // namespace
}  // namespace orcd
