// Requests that end early. Whoever ends one, its slot and its KV blocks become free, and no other
// request notices.
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "integration_tests/worker_fixture.h"

namespace orcd::testing {
namespace {

class CancelTest : public WorkerTest {
 protected:
  void SetUp() override {
    WorkerTest::SetUp();
    ASSERT_NO_FATAL_FAILURE(StartLoaded({"--max-seqs", "4", "--max-waiting", "3"}));
  }

  // Everything is free now, without waiting.
  void ExpectQuiet() {
    const v1::WorkerStatus status = client().Status();
    EXPECT_EQ(status.queue().running_requests(), 0u);
    EXPECT_EQ(status.queue().waiting_requests(), 0u);
    EXPECT_GT(status.kv_blocks().total(), 0u);
    EXPECT_EQ(status.kv_blocks().free(), status.kv_blocks().total());
  }

  v1::GenerateRequest Short(uint64_t seed = 9) {
    v1::GenerateRequest request = TextRequest("Hello", 20);
    request.mutable_sampling()->set_seed(seed);
    request.mutable_stop()->set_ignore_eog(true);
    return request;
  }
};

TEST_F(CancelTest, CancelRpcAnswersAfterTheRelease) {
  for (int round = 0; round < 5; ++round) {
    GenerateCall call(stub(), EndlessRequest("endless"), absl::Seconds(60));
    ASSERT_TRUE(call.ReadUntilTokens(1 + 10 * round));
    EXPECT_LT(client().Status().kv_blocks().free(), client().Status().kv_blocks().total());
    bool found = false;
    ASSERT_TRUE(client().Cancel("endless", &found).ok());
    EXPECT_TRUE(found);
    ExpectQuiet();

    const Generation& generation = call.Finish();
    EXPECT_TRUE(IsError(generation.error, grpc::StatusCode::CANCELLED));
    EXPECT_EQ(generation.violation, "");
    ASSERT_TRUE(generation.finished);
    EXPECT_EQ(generation.reason(), v1::FINISH_REASON_CANCELLED);
    EXPECT_EQ(generation.finished->usage().generated_tokens(), generation.ids.size());
  }
  EXPECT_TRUE(IsComplete(client().Generate(Short())));
}

TEST_F(CancelTest, UnknownAndFinishedIdsAreNoError) {
  bool found = true;
  EXPECT_TRUE(client().Cancel("nobody", &found).ok());
  EXPECT_FALSE(found);

  v1::GenerateRequest request = Short();
  request.set_request_id("done");
  ASSERT_TRUE(IsComplete(client().Generate(request)));
  found = true;
  EXPECT_TRUE(client().Cancel("done", &found).ok());
  EXPECT_FALSE(found);
}

TEST_F(CancelTest, TwoCancelsOfOneRequestBothAnswer) {
  GenerateCall call(stub(), EndlessRequest("endless"), absl::Seconds(60));
  ASSERT_TRUE(call.ReadUntilStarted());
  std::vector<std::future<RpcError>> cancels;
  for (int i = 0; i < 8; ++i) {
    cancels.push_back(std::async(std::launch::async, [&] { return client().Cancel("endless"); }));
  }
  for (auto& cancel : cancels) EXPECT_TRUE(cancel.get().ok());
  ExpectQuiet();
  EXPECT_TRUE(IsError(call.Finish().error, grpc::StatusCode::CANCELLED));
}

TEST_F(CancelTest, IdIsFreeAgainAfterTheCancel) {
  GenerateCall first(stub(), EndlessRequest("same"), absl::Seconds(60));
  ASSERT_TRUE(first.ReadUntilStarted());
  ASSERT_TRUE(client().Cancel("same").ok());
  v1::GenerateRequest request = Short();
  request.set_request_id("same");
  EXPECT_TRUE(IsComplete(client().Generate(request)));
}

TEST_F(CancelTest, DuplicateLiveIdIsRefusedAndTheFirstGoesOn) {
  GenerateCall first(stub(), EndlessRequest("same"), absl::Seconds(60));
  ASSERT_TRUE(first.ReadUntilStarted());
  v1::GenerateRequest request = Short();
  request.set_request_id("same");
  const Generation second = client().Generate(request);
  EXPECT_TRUE(IsError(second.error, grpc::StatusCode::ALREADY_EXISTS, "DUPLICATE_REQUEST_ID"));
  EXPECT_TRUE(first.ReadUntilTokens(first.so_far().ids.size() + 5));
  bool found = false;
  EXPECT_TRUE(client().Cancel("same", &found).ok());
  EXPECT_TRUE(found);
}

TEST_F(CancelTest, HangingUpFrees) {
  for (const size_t tokens : {0u, 1u, 30u}) {
    // A client that hangs up at once may do so before the worker has seen the request.
    GenerateCall call(stub(), EndlessRequest(absl::StrCat("endless-", tokens)), absl::Seconds(60));
    ASSERT_TRUE(call.ReadUntilTokens(tokens));
    call.HangUp();
    EXPECT_EQ(call.Finish().error.code, grpc::StatusCode::CANCELLED);
    EXPECT_TRUE(client().WaitForQuiet()) << "after " << tokens << " tokens";
  }
  EXPECT_TRUE(IsComplete(client().Generate(Short())));
}

// The whole connection goes with several streams on it, as when the client's machine dies.
TEST_F(CancelTest, LostConnectionFreesEveryStreamOnIt) {
  {
    WorkerClient other(worker().address());
    std::vector<std::unique_ptr<GenerateCall>> calls;
    for (int i = 0; i < 4; ++i) {
      calls.push_back(std::make_unique<GenerateCall>(
          other.stub(), EndlessRequest(absl::StrCat("lost-", i)), absl::Seconds(60)));
      ASSERT_TRUE(calls.back()->ReadUntilTokens(1));
    }
    EXPECT_EQ(client().Status().queue().running_requests(), 4u);
  }
  EXPECT_TRUE(client().WaitForQuiet());
  EXPECT_TRUE(IsComplete(client().Generate(Short())));
}

TEST_F(CancelTest, DeadlineEndsTheRequest) {
  GenerateCall call(stub(), EndlessRequest("late"), absl::Milliseconds(300));
  const Generation& generation = call.Finish();
  EXPECT_EQ(generation.error.code, grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(generation.violation, "");
  EXPECT_FALSE(generation.ids.empty());
  // A deadline is never a finish reason.
  EXPECT_FALSE(generation.finished && generation.error.ok());
  // A step of this model takes about a millisecond.
  EXPECT_TRUE(client().WaitForStatus(
      [](const v1::WorkerStatus& status) {
        return status.kv_blocks().free() == status.kv_blocks().total();
      },
      absl::Milliseconds(500)));
}

TEST_F(CancelTest, DeadlineEndsTheRequestInTheQueue) {
  std::vector<std::unique_ptr<GenerateCall>> running;
  for (int i = 0; i < 4; ++i) {
    running.push_back(std::make_unique<GenerateCall>(
        stub(), EndlessRequest(absl::StrCat("running-", i)), absl::Seconds(60)));
    ASSERT_TRUE(running.back()->ReadUntilStarted());
  }
  GenerateCall queued(stub(), EndlessRequest("queued"), absl::Milliseconds(300));
  const Generation& generation = queued.Finish();
  EXPECT_EQ(generation.error.code, grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_FALSE(generation.started);
  EXPECT_TRUE(client().WaitForStatus([](const v1::WorkerStatus& status) {
    return status.queue().waiting_requests() == 0 && status.queue().running_requests() == 4;
  }));
}

TEST_F(CancelTest, CancelInTheQueueLeavesOthersAlone) {
  const Generation expected = client().Generate(Short(77));
  ASSERT_TRUE(IsComplete(expected));
  std::vector<std::unique_ptr<GenerateCall>> running;
  for (int i = 0; i < 4; ++i) {
    running.push_back(std::make_unique<GenerateCall>(
        stub(), EndlessRequest(absl::StrCat("running-", i)), absl::Seconds(60)));
    ASSERT_TRUE(running.back()->ReadUntilStarted());
  }
  GenerateCall queued(stub(), EndlessRequest("queued"), absl::Seconds(60));
  ASSERT_TRUE(client().WaitForStatus(
      [](const v1::WorkerStatus& status) { return status.queue().waiting_requests() == 1; }));
  GenerateCall next(stub(), Short(77), absl::Seconds(60));
  ASSERT_TRUE(client().WaitForStatus(
      [](const v1::WorkerStatus& status) { return status.queue().waiting_requests() == 2; }));
  bool found = false;
  ASSERT_TRUE(client().Cancel("queued", &found).ok());
  EXPECT_TRUE(found);
  EXPECT_EQ(client().Status().queue().waiting_requests(), 1u);
  EXPECT_TRUE(IsError(queued.Finish().error, grpc::StatusCode::CANCELLED));

  for (auto& call : running) EXPECT_TRUE(call->ReadUntilTokens(call->so_far().ids.size() + 3));
  ASSERT_TRUE(client().Cancel("running-2").ok());
  const Generation& generation = next.Finish();
  ASSERT_TRUE(IsComplete(generation));
  EXPECT_EQ(generation.ids, expected.ids);
}

TEST_F(CancelTest, FullQueueRefusesAndSaysWhenToTryAgain) {
  std::vector<std::unique_ptr<GenerateCall>> calls;
  for (int i = 0; i < 4; ++i) {
    calls.push_back(std::make_unique<GenerateCall>(
        stub(), EndlessRequest(absl::StrCat("running-", i)), absl::Seconds(60)));
    ASSERT_TRUE(calls.back()->ReadUntilStarted());
  }
  for (int i = 0; i < 3; ++i) {
    calls.push_back(std::make_unique<GenerateCall>(
        stub(), EndlessRequest(absl::StrCat("waiting-", i)), absl::Seconds(60)));
  }
  ASSERT_TRUE(client().WaitForStatus(
      [](const v1::WorkerStatus& status) { return status.queue().waiting_requests() == 3; }));
  const Generation refused = client().Generate(Short());
  EXPECT_TRUE(IsError(refused.error, grpc::StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL"));
  EXPECT_TRUE(refused.error.has_quota_failure);
  ASSERT_TRUE(refused.error.retry_delay);
  EXPECT_GT(*refused.error.retry_delay, absl::ZeroDuration());

  calls.clear();
  EXPECT_TRUE(client().WaitForQuiet());
  EXPECT_TRUE(IsComplete(client().Generate(Short())));
}

// A client that does not read its stream costs a bounded amount of memory, delays nobody, and in
// the end gets the complete answer or an error.
TEST_F(CancelTest, SlowReaderHarmsOnlyItself) {
  v1::GenerateRequest request = EndlessRequest("slow");
  request.set_logprobs(20);
  // Several megabytes of answers. A sanitizer build measures no memory and is slow, so gets fewer.
  request.mutable_stop()->set_max_tokens(kSanitized ? 1500 : 8000);
  const int64_t before = worker().ReadMemory().anonymous;
  GenerateCall slow(stub(), request, absl::Seconds(120));
  ASSERT_TRUE(slow.ReadUntilStarted());

  const Generation expected = client().Generate(Short());
  ASSERT_TRUE(IsComplete(expected));
  ASSERT_TRUE(client().WaitForStatus(
      [](const v1::WorkerStatus& status) { return status.queue().running_requests() == 0; },
      absl::Seconds(90)));
  EXPECT_TRUE(client().WaitForQuiet());
  const Generation beside = client().Generate(Short());
  ASSERT_TRUE(IsComplete(beside));
  EXPECT_EQ(beside.ids, expected.ids);
  if (!kSanitized) {
    EXPECT_LT(worker().ReadMemory().anonymous - before, int64_t{64} << 20);
  }

  const Generation& generation = slow.Finish();
  EXPECT_EQ(generation.violation, "");
  if (generation.error.ok()) {
    EXPECT_TRUE(IsComplete(generation));
  } else {
    EXPECT_TRUE(IsError(generation.error, grpc::StatusCode::RESOURCE_EXHAUSTED, "SLOW_READER"));
  }
}

// Many clients come, go and cancel at once; afterwards everything is free.
TEST_F(CancelTest, StormOfEveryEndingLeavesNothingBehind) {
  const Generation expected = client().Generate(Short(5));
  ASSERT_TRUE(IsComplete(expected));
  std::vector<std::future<void>> clients;
  for (int c = 0; c < 6; ++c) {
    clients.push_back(std::async(std::launch::async, [&, c] {
      WorkerClient own(worker().address());
      for (int i = 0; i < 12; ++i) {
        const std::string id = absl::StrCat("storm-", c, "-", i);
        switch ((c + i) % 4) {
          case 0: {
            const Generation generation = own.Generate(Short(5));
            if (generation.error.ok()) {
              EXPECT_TRUE(IsComplete(generation));
              EXPECT_EQ(generation.ids, expected.ids);
            } else {
              EXPECT_TRUE(IsError(generation.error, grpc::StatusCode::RESOURCE_EXHAUSTED));
            }
            break;
          }
          case 1: {
            GenerateCall call(own.stub(), EndlessRequest(id), absl::Seconds(60));
            call.ReadUntilTokens(i);
            break;
          }
          case 2: {
            GenerateCall call(own.stub(), EndlessRequest(id), absl::Milliseconds(10 * i));
            call.Finish();
            break;
          }
          case 3: {
            GenerateCall call(own.stub(), EndlessRequest(id), absl::Seconds(60));
            if (i % 2 == 0) call.ReadUntilStarted();
            EXPECT_TRUE(own.Cancel(id).ok());
            // A Cancel that came before the request found no request to end.
            call.HangUp();
            call.Finish();
            break;
          }
        }
      }
    }));
  }
  for (auto& done : clients) done.get();
  EXPECT_TRUE(client().WaitForQuiet());
  const Generation after = client().Generate(Short(5));
  ASSERT_TRUE(IsComplete(after));
  EXPECT_EQ(after.ids, expected.ids);
}

}  // namespace
}  // namespace orcd::testing
