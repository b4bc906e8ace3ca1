#include "worker/fleet/smg_workers.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/base/thread_time.h"

namespace orcd {
namespace {

constexpr char kId[] = "01a202b9-912f-734a-8afe-59a53533c3c2";

// An answer of smg 1.13.
constexpr char kPending[] =
    R"({"id":"01a202b9-912f-734a-8afe-59a53533c3c2","url":"grpc://127.0.0.1:31997",)"
    R"("worker_type":"regular","connection_mode":"http","priority":50,"cost":1.0,)"
    R"("is_healthy":false,"status":"pending","load":0,"http2":false,"job_status":)"
    R"({"job_type":"AddWorker","worker_url":"grpc://127.0.0.1:31997","status":"processing",)"
    R"("message":null,"timestamp":1795342155}})";

TEST(SmgWorkersTest, ReadsAWorker) {
  const auto worker = ParseSmgWorker(kPending);
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(worker->id, kId);
  EXPECT_EQ(worker->url, "grpc://127.0.0.1:31997");
  EXPECT_EQ(worker->status, "pending");
  EXPECT_EQ(worker->job_status, "processing");
}

TEST(SmgWorkersTest, ReadsAList) {
  const auto workers = ParseSmgWorkers(absl::StrCat(R"({"workers":[)", kPending,
                                                    R"(,5,{"url":"grpc://b:1","status":"ready"}],)",
                                                    R"("total":2,"stats":{"regular_count":2}})"));
  ASSERT_TRUE(workers.ok()) << workers.status();
  ASSERT_EQ(workers->size(), 2u);
  EXPECT_EQ(workers->at(0).job_status, "processing");
  EXPECT_EQ(workers->at(1).url, "grpc://b:1");
  EXPECT_EQ(workers->at(1).id, "");
  EXPECT_TRUE(ParseSmgWorkers(R"({"workers":[]})")->empty());
}

TEST(SmgWorkersTest, MalformedFieldsAreEmpty) {
  const auto worker = ParseSmgWorker(
      R"({"id":"../../flush_cache","url":7,"status":["ready"],"job_status":"failed"})");
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(worker->id, "");
  EXPECT_EQ(worker->url, "");
  EXPECT_EQ(worker->status, "");
  EXPECT_EQ(worker->job_status, "");
}

TEST(SmgWorkersTest, GarbageIsAnErrorHoweverDeepItIs) {
  const std::string deep(500'000, '[');
  for (const std::string& text :
       {std::string(), std::string("null"), std::string("[]"), std::string("{"),
        std::string("\xff\xfe"), std::string(R"({"workers":{}})"), deep,
        absl::StrCat(R"({"workers":)", deep)}) {
    EXPECT_TRUE(absl::IsUnavailable(ParseSmgWorkers(text).status())) << text.substr(0, 20);
  }
  EXPECT_TRUE(absl::IsUnavailable(ParseSmgWorker("[]").status()));
  EXPECT_TRUE(absl::IsUnavailable(ParseSmgWorker(deep).status()));
  const std::string closed = deep + std::string(deep.size(), ']');
  EXPECT_FALSE(ParseSmgWorkers(absl::StrCat(R"({"workers":[{"x":)", closed, "}]}")).ok());
}

TEST(SmgWorkersTest, AListOfVeryManyTakesNoLongerThanItsLength) {
  std::string text = R"({"workers":[{})";
  while (text.size() < (1 << 20) - 10) text += ",{}";
  const absl::Duration before = ThreadTime();
  const auto workers = ParseSmgWorkers(text + "]}");
  EXPECT_LT(ThreadTime() - before, absl::Seconds(20));
  ASSERT_TRUE(workers.ok()) << workers.status();
  EXPECT_GT(workers->size(), 300'000u);
}

TEST(SmgWorkersTest, FindsTheIdOfAnAnswer) {
  EXPECT_EQ(FindSmgWorkerId(absl::StrCat(R"({"status":"accepted","worker_id":")", kId, R"("})")),
            kId);
  EXPECT_EQ(FindSmgWorkerId(absl::StrCat("Worker already exists with ID ", kId, ". Use PUT")), kId);
  EXPECT_EQ(FindSmgWorkerId("no id, 01a202b9-912f-734a-8afe-59a53533c3cg"), "");
  EXPECT_EQ(FindSmgWorkerId(""), "");
}

}  // namespace
}  // namespace orcd
