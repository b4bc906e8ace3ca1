// Constraints that are made to cost a lot: each gets its status in bounded time and memory, and the
// stream beside them goes on.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "integration_tests/many_call.h"
#include "integration_tests/worker_fixture.h"

namespace orcd::testing {
namespace {

std::string Repeat(std::string_view part, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += part;
  return text;
}

// A thread that only sleeps for short times. Where it wakes late, the machine ran neither it nor,
// for all that can be known, the worker.
class Pulse {
 public:
  Pulse() : thread_([this] { Run(); }) {}
  ~Pulse() {
    stopping_ = true;
    thread_.join();
  }

  // The part of [begin, end] for which this thread waited to be run.
  absl::Duration Stalled(absl::Time begin, absl::Time end) const {
    absl::Duration stalled;
    std::lock_guard lock(mutex_);
    for (const auto& [from, to] : stalls_) {
      stalled += std::max(absl::ZeroDuration(), std::min(to, end) - std::max(from, begin));
    }
    return stalled;
  }

 private:
  void Run() {
    constexpr absl::Duration kSleep = absl::Milliseconds(1);
    constexpr absl::Duration kLate = absl::Milliseconds(5);
    while (!stopping_) {
      const absl::Time due = absl::Now() + kSleep;
      absl::SleepFor(kSleep);
      const absl::Time woken = absl::Now();
      if (woken - due < kLate) continue;
      std::lock_guard lock(mutex_);
      stalls_.emplace_back(due, woken);
    }
  }

  std::atomic<bool> stopping_ = false;
  mutable std::mutex mutex_;
  std::vector<std::pair<absl::Time, absl::Time>> stalls_;
  // The last member, because it uses the others.
  std::thread thread_;
};

// A stream without a constraint that measures the time between its messages, but for that in which
// the machine was stalled.
class HonestStream {
 public:
  HonestStream(v1::Worker::Stub& stub, const v1::GenerateRequest& request)
      : thread_([this, &stub, request] { Run(stub, request); }) {}
  ~HonestStream() {
    if (thread_.joinable()) Stop();
  }

  // Ends the stream, which has at least kLeastGaps by then. Returns the time that 99% of the gaps
  // do not exceed.
  absl::Duration Stop() {
    stopping_ = true;
    thread_.join();
    for (size_t i = 1; i < arrivals_.size(); ++i) {
      const absl::Time before = arrivals_[i - 1];
      gaps_.push_back(arrivals_[i] - before - pulse_.Stalled(before, arrivals_[i]));
    }
    if (gaps_.empty()) return absl::InfiniteDuration();
    std::sort(gaps_.begin(), gaps_.end());
    return gaps_[gaps_.size() * 99 / 100];
  }
  // Valid after Stop. The stream was never refused, cut or broken.
  bool went_on() const { return went_on_; }
  absl::Duration median_gap() const { return gaps_[gaps_.size() / 2]; }
  absl::Duration longest_gap() const { return gaps_.back(); }
  size_t messages() const { return gaps_.size() + 1; }

 private:
  static constexpr size_t kLeastGaps = 300;

  void Run(v1::Worker::Stub& stub, const v1::GenerateRequest& request) {
    GenerateCall call(stub, request, absl::Seconds(300));
    if (!call.ReadUntilTokens(1)) return;
    arrivals_.push_back(absl::Now());
    while (!stopping_ || arrivals_.size() <= kLeastGaps) {
      if (!call.Read()) return;
      arrivals_.push_back(absl::Now());
    }
    went_on_ = call.so_far().violation.empty();
  }

  std::atomic<bool> stopping_ = false;
  bool went_on_ = false;
  Pulse pulse_;
  std::vector<absl::Time> arrivals_;
  // Since Stop.
  std::vector<absl::Duration> gaps_;
  // The last member, because it uses the others.
  std::thread thread_;
};

class HostileConstraintTest : public WorkerTest {
 protected:
  static constexpr absl::Duration kStep = absl::Milliseconds(4);
  static constexpr absl::Duration kLongestP99 = absl::Milliseconds(250);

  void SetUp() override {
    WorkerTest::SetUp();
    ASSERT_NO_FATAL_FAILURE(
        StartLoaded({"--backend", "null", "--null-step", absl::FormatDuration(kStep), "--max-seqs",
                     "64", "--max-waiting", "256", "--log-level", "warning"}));
    if (!client().Status().model().constraints_supported()) {
      GTEST_SKIP() << "constraints are not built";
    }
    honest_ = std::make_unique<HonestStream>(stub(), EndlessRequest("honest"));
  }

  void TearDown() override {
    if (honest_ != nullptr) {
      const absl::Duration p99 = honest_->Stop();
      EXPECT_TRUE(honest_->went_on());
      EXPECT_LE(p99, Bound(kLongestP99));
      std::cout << "the stream beside: " << honest_->messages() << " messages, p99 " << p99
                << " between them, longest " << honest_->longest_gap() << "\n";
      honest_ = nullptr;
    }
    WorkerTest::TearDown();
  }

  static v1::GenerateRequest Ask(const v1::Constraint& constraint, uint32_t tokens) {
    v1::GenerateRequest request = TextRequest("Hello", tokens);
    request.mutable_sampling()->set_seed(1);
    *request.mutable_constraint() = constraint;
    return request;
  }
  static v1::Constraint Schema(const std::string& schema) {
    v1::Constraint constraint;
    constraint.set_json_schema(schema);
    return constraint;
  }
  static v1::Constraint Regex(const std::string& regex) {
    v1::Constraint constraint;
    constraint.set_regex(regex);
    return constraint;
  }
  static v1::Constraint Grammar(v1::GrammarDialect dialect, const std::string& text) {
    v1::Constraint constraint;
    constraint.mutable_grammar()->set_dialect(dialect);
    constraint.mutable_grammar()->set_text(text);
    return constraint;
  }
  static v1::Constraint Lark(const std::string& text) {
    return Grammar(v1::GRAMMAR_DIALECT_LARK, text);
  }
  static v1::Constraint Ebnf(const std::string& text) {
    return Grammar(v1::GRAMMAR_DIALECT_EBNF, text);
  }

  // Sends the constraint and expects, in bounded time, an output or a refusal that names the limit
  // or the mistake. Returns the reason; empty for an output.
  std::string Send(const std::string& name, const v1::Constraint& constraint) {
    constexpr absl::Duration kLongest = absl::Seconds(10);
    const absl::Time begun = absl::Now();
    const Generation generation = client().Generate(Ask(constraint, 20));
    const absl::Duration took = absl::Now() - begun;
    EXPECT_LE(took, Bound(kLongest)) << name;
    const RpcError& error = generation.error;
    std::cout << name << ": " << (error.ok() ? "served" : error.reason) << " in " << took << "\n";
    if (error.ok()) {
      EXPECT_TRUE(IsComplete(generation)) << name;
      return "";
    }
    EXPECT_TRUE(error.code == grpc::StatusCode::INVALID_ARGUMENT ||
                error.code == grpc::StatusCode::RESOURCE_EXHAUSTED)
        << name << ": " << error;
    EXPECT_LE(error.message.size(), 600u) << name;
    return error.reason;
  }

 private:
  std::unique_ptr<HonestStream> honest_;
};

TEST_F(HostileConstraintTest, RefusalsHaveTheirReason) {
  std::string wide = R"({"type":"object","properties":{)";
  for (int i = 0; i < 1500; ++i) absl::StrAppend(&wide, i == 0 ? "" : ",", "\"p", i, "\":{}");
  const std::vector<std::pair<v1::Constraint, std::string_view>> cases = {
      {Schema(Repeat(R"({"items":)", 10'000) + "true" + Repeat("}", 10'000)),
       "CONSTRAINT_TOO_LARGE"},
      {Schema(R"({"const":)" + Repeat("[", 10'000) + Repeat("]", 10'000) + "}"),
       "CONSTRAINT_TOO_LARGE"},
      {Schema(R"({"description":")" + std::string(1 << 20, 'x') + R"("})"), "CONSTRAINT_TOO_LARGE"},
      {Regex(std::string(1 << 20, 'x')), "CONSTRAINT_TOO_LARGE"},
      {Schema(R"({"type":"integer","multipleOf":99991})"), "CONSTRAINT_TOO_LARGE"},
      {Schema(R"({"type":"integer","minimum":5,"maximum":3})"), "CONSTRAINT_UNSATISFIABLE"},
      {Schema(R"({"enum":[]})"), "CONSTRAINT_UNSATISFIABLE"},
      {Schema("false"), "CONSTRAINT_UNSATISFIABLE"},
      {Schema(R"({"type":"object","required":["a"],"properties":{"a":false}})"),
       "CONSTRAINT_UNSATISFIABLE"},
      {Schema("{"), "CONSTRAINT_INVALID"},
      {Schema(R"({"type":7})"), "CONSTRAINT_INVALID"},
      {Schema(wide + "}}"), "CONSTRAINT_TOO_LARGE"},
      {Schema(R"({"uniqueItems":true})"), "CONSTRAINT_UNSUPPORTED"},
      {Regex("("), "CONSTRAINT_INVALID"},
      {Lark("start: missing"), "CONSTRAINT_INVALID"},
      {Ebnf("root ::= missing"), "CONSTRAINT_INVALID"},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(Send(absl::StrCat("refusal ", i), cases[i].first), cases[i].second)
        << cases[i].first.ShortDebugString().substr(0, 200);
  }
}

TEST_F(HostileConstraintTest, CostIsBounded) {
  // The intersection of 24 pairs has 2^24 alternatives.
  std::string any_of_pairs = R"({"allOf":[)";
  for (int i = 0; i < 24; ++i) {
    absl::StrAppend(&any_of_pairs, i == 0 ? "" : ",", R"({"anyOf":[{"required":["a)", i,
                    R"("]},{"required":["b)", i, R"("]}]})");
  }
  any_of_pairs += "]}";
  std::string choices = "start: C\nC: ";
  for (int i = 0; i < 8000; ++i) absl::StrAppend(&choices, i == 0 ? "" : " | ", "\"c", i, "\"");
  const std::string doubling =
      R"({"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/b"},{"$ref":"#/$defs/b"}]},)"
      R"("b":{"anyOf":[{"$ref":"#/$defs/c"},{"$ref":"#/$defs/c"}]},)"
      R"("c":{"anyOf":[{"$ref":"#/$defs/a"},{"type":"null"}]}},"$ref":"#/$defs/a"})";
  const std::vector<std::pair<std::string, v1::Constraint>> cases = {
      {"maxItems 10^9", Schema(R"({"type":"array","maxItems":1000000000})")},
      {"minItems 10^9", Schema(R"({"type":"array","minItems":1000000000})")},
      {"maxLength 10^9", Schema(R"({"type":"string","maxLength":1000000000})")},
      {"minLength 10^9", Schema(R"({"type":"string","minLength":1000000000})")},
      {"maxProperties 10^9", Schema(R"({"type":"object","maxProperties":1000000000})")},
      {"exponential anyOf", Schema(any_of_pairs)},
      {"a reference to itself", Schema(R"({"$ref":"#"})")},
      {"references in a circle",
       Schema(
           R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"})")},
      {"references that double", Schema(doubling)},
      {"pattern with many states", Schema(R"({"type":"string","pattern":"(.*a.{50}b){20}"})")},
      {"regex with many states", Regex("(.*a.{50}b){20}")},
      {"regex of nested counts", Regex("(((a{1,100}){1,100}){1,100}){1,100}")},
      {"regex that remembers", Regex("[ab]*a[ab]{400}")},
      {"regex of nested stars", Regex("((x+x+)+y)+")},
      {"regex of nested groups", Regex(Repeat("(", 20'000) + "a" + Repeat(")", 20'000))},
      {"regex of classes", Regex(Repeat("\\w", 5000))},
      {"grammar of nested groups",
       Lark("start: " + Repeat("(", 20'000) + "\"a\"" + Repeat(")", 20'000))},
      {"grammar that repeats 10^9 times", Lark("start: (\"a\"{0,1000000000}){0,1000000000}")},
      {"grammar that recurses left", Lark("start: start start | \"a\"")},
      {"grammar of itself", Ebnf("root ::= root")},
      {"grammar of nested EBNF groups",
       Ebnf("root ::= " + Repeat("(", 20'000) + "\"a\"" + Repeat(")", 20'000))},
      {"8,000 choices", Lark(choices)},
  };
  const int64_t before = worker().ReadMemory().anonymous;
  for (const auto& [name, constraint] : cases) {
    const std::string reason = Send(name, constraint);
    EXPECT_TRUE(reason.empty() || absl::StartsWith(reason, "CONSTRAINT_"))
        << name << ": " << reason;
  }
  constexpr int64_t kMostMemory = 1 << 30;
  const WorkerProcess::Memory memory = worker().ReadMemory();
  std::cout << "memory: " << before << " bytes before, " << memory.anonymous << " after, peak "
            << memory.peak << "\n";
  if (!kSanitized) {
    EXPECT_LE(memory.peak, kMostMemory);
  }
  EXPECT_TRUE(client().WaitForStatus(
      [](const v1::WorkerStatus& status) { return status.queue().running_requests() == 1; }));
}

// Each of the masks takes up to some milliseconds, which all streams of a step would wait for.
TEST_F(HostileConstraintTest, CostlyRulesAtOnceHoldUpNobody) {
  constexpr int kAtOnce = 40;
  HonestStream alone(stub(), EndlessRequest("alone"));
  alone.Stop();
  std::vector<std::unique_ptr<GenerateCall>> calls;
  for (int i = 0; i < kAtOnce; ++i) {
    const v1::Constraint rule = Regex(absl::StrCat("(.*a.{", 40 + i, "}b){20}"));
    calls.push_back(
        std::make_unique<GenerateCall>(stub(), Ask(rule, 2000), Bound(absl::Seconds(120))));
  }
  EXPECT_TRUE(client().WaitForStatus([](const v1::WorkerStatus& status) {
    return status.queue().running_requests() > kAtOnce / 2;
  }));
  HonestStream beside(stub(), EndlessRequest("beside"));
  beside.Stop();
  ASSERT_TRUE(alone.went_on() && beside.went_on());
  std::cout << "gaps, median: " << alone.median_gap() << " alone, " << beside.median_gap()
            << " beside " << kAtOnce << " costly rules\n";
  // A sanitizer makes masks take as long as the bound on all of them.
  if (!kSanitized) {
    EXPECT_LE(beside.median_gap(), 4 * alone.median_gap());
  }
  for (const auto& call : calls) call->HangUp();
}

TEST_F(HostileConstraintTest, TenMegabytesAreRefusedBeforeTheyAreRead) {
  const std::string schema = R"({"description":")" + std::string(10 << 20, 'x') + R"("})";
  const Generation generation = client().Generate(Ask(Schema(schema), 5));
  EXPECT_TRUE(generation.error.code == grpc::StatusCode::INVALID_ARGUMENT ||
              generation.error.code == grpc::StatusCode::RESOURCE_EXHAUSTED)
      << generation.error;
}

TEST_F(HostileConstraintTest, ManyDistinctSchemasLeaveMemoryFlat) {
  constexpr int kSchemas = 1600;
  constexpr int kWarmUp = 800;
  constexpr int kAtOnce = 40;
  // The cache of compiled rules may still grow to its budget.
  constexpr int64_t kMostGrowth = 72 << 20;
  int64_t before = 0;
  ManyCall call(stub());
  for (int sent = 0; sent < kSchemas;) {
    std::vector<std::string> ids;
    for (int i = 0; i < kAtOnce; ++i, ++sent) {
      v1::GenerateRequest request =
          Ask(Schema(absl::StrCat(R"({"type":"object","properties":{"id":{"const":)", sent,
                                  R"(}},"required":["id"],"additionalProperties":false})")),
              2);
      request.set_request_id(absl::StrCat("s", sent));
      ids.push_back(request.request_id());
      ASSERT_TRUE(call.Generate(request));
    }
    for (const std::string& id : ids) {
      ASSERT_TRUE(call.ReadUntilEnd(id));
      ASSERT_TRUE(call.by_id()[id].error().ok()) << call.by_id()[id].error();
    }
    call.by_id().clear();
    if (sent <= kWarmUp) before = std::max(before, worker().ReadMemory().anonymous);
  }
  call.CloseRequests();
  ASSERT_TRUE(call.Finish().ok());
  const int64_t after = worker().ReadMemory().anonymous;
  std::cout << "anonymous memory: " << before << " bytes after " << kWarmUp << " schemas, " << after
            << " after " << kSchemas << "\n";
  // A sanitizer keeps what was freed.
  if (!kSanitized) {
    EXPECT_LE(after - before, kMostGrowth);
  }
}

TEST_F(HostileConstraintTest, CancelsDuringCompilationLeaveNothing) {
  constexpr int kRounds = 5;
  constexpr int kAtOnce = 24;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t compiled_before = client().Status().constraints().compiled();
    std::vector<std::unique_ptr<GenerateCall>> calls;
    for (int i = 0; i < kAtOnce; ++i) {
      std::string choices = R"({"enum":[)";
      for (int word = 0; word < 3000; ++word) {
        absl::StrAppend(&choices, word == 0 ? "" : ",", "\"", round, "-", i, "-", word * 7919,
                        "\"");
      }
      choices += "]}";
      calls.push_back(
          std::make_unique<GenerateCall>(stub(), Ask(Schema(choices), 5), absl::Seconds(60)));
    }
    // They hang up once `round` of them were compiled and the next one is there.
    const uint64_t compiled_then = compiled_before + static_cast<uint64_t>(round);
    EXPECT_TRUE(client().WaitForStatus([&](const v1::WorkerStatus& status) {
      const v1::ConstraintFigures& figures = status.constraints();
      return (figures.live() > 0 && figures.compiled() >= compiled_then) ||
             figures.compiled() >= compiled_before + kAtOnce;
    }));
    for (const auto& call : calls) call->HangUp();
    calls.clear();
  }
  EXPECT_TRUE(client().WaitForStatus([](const v1::WorkerStatus& status) {
    return status.queue().running_requests() == 1 && status.queue().waiting_requests() == 0 &&
           status.constraints().live() == 0;
  }));
  EXPECT_EQ(Send("after the cancels", Schema(R"({"type":"integer","minimum":0,"maximum":9})")), "");
}

}  // namespace
}  // namespace orcd::testing
