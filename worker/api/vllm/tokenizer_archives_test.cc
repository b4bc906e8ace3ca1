#include "worker/api/vllm/tokenizer_archives.h"

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "testing/event.h"
#include "worker/host/load_for_test.h"
#include "worker/host/nano_model_for_test.h"

namespace orcd {
namespace {

constexpr absl::Duration kLong = absl::Seconds(20);

class TokenizerArchivesTest : public ::testing::Test {
 protected:
  TokenizerArchivesTest() : host_(Options()), archives_(std::in_place, host_) {}

  ModelHostOptions Options() const {
    ModelHostOptions options = NullHostOptions(models_.path());
    options.load.backend.max_seqs = 4;
    options.load.backend.block_tokens = 16;
    options.load.backend.kv_cache_bytes = 1 << 20;
    return options;
  }
  void Load(const std::string& model) {
    Event loaded;
    host_.Load({.model = model}, [&](const absl::StatusOr<v1::ModelDescription>& result) {
      EXPECT_TRUE(result.ok()) << result.status();
      loaded.Notify();
    });
    ASSERT_TRUE(loaded.WaitFor(kLong));
  }
  void Unload() {
    Event unloaded;
    host_.Unload("", false, [&](const auto& result) {
      EXPECT_TRUE(result.ok()) << result.status();
      unloaded.Notify();
    });
    ASSERT_TRUE(unloaded.WaitFor(kLong));
  }
  absl::StatusOr<TokenizerArchives::Archive> Get() {
    Event done;
    absl::StatusOr<TokenizerArchives::Archive> archive = nullptr;
    archives_->Get([&](const absl::StatusOr<TokenizerArchives::Archive>& result) {
      archive = result;
      done.Notify();
    });
    EXPECT_TRUE(done.WaitFor(kLong));
    return archive;
  }

  NanoModelDir models_;
  ModelHost host_;
  // Destroyed before the host, which still reports changes at that time.
  std::optional<TokenizerArchives> archives_;
};

TEST_F(TokenizerArchivesTest, IsMadeOnceForAllWhoAsk) {
  Load("nano.gguf");
  constexpr int kCalls = 8;
  std::vector<TokenizerArchives::Archive> archives(kCalls);
  std::vector<Event> done(kCalls);
  for (int i = 0; i < kCalls; ++i) {
    archives_->Get([&, i](const absl::StatusOr<TokenizerArchives::Archive>& archive) {
      EXPECT_TRUE(archive.ok()) << archive.status();
      archives[i] = *archive;
      done[i].Notify();
    });
  }
  for (Event& event : done) ASSERT_TRUE(event.WaitFor(kLong));
  for (const auto& archive : archives) EXPECT_EQ(archive, archives[0]);
  EXPECT_EQ(archives[0]->bytes.substr(0, 2), "PK");
  EXPECT_EQ(archives[0]->sha256.size(), 64u);
}

TEST_F(TokenizerArchivesTest, GoesWithTheModel) {
  EXPECT_EQ(GetErrorDetails(Get().status()).reason, "MODEL_NOT_LOADED");
  Load("nano.gguf");
  const auto first = Get();
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string sha256 = (*first)->sha256;
  const std::weak_ptr<const TokenizerArchive> kept = *first;
  EXPECT_GT(kept.use_count(), 1);
  const auto again = Get();
  EXPECT_EQ(*again, *first);
  Unload();
  EXPECT_EQ(GetErrorDetails(Get().status()).reason, "MODEL_NOT_LOADED");
  EXPECT_EQ(kept.use_count(), 2) << "only we hold it";
  Load("nano.gguf");
  const auto anew = Get();
  ASSERT_TRUE(anew.ok());
  EXPECT_NE(*anew, *first);
  EXPECT_EQ((*anew)->sha256, sha256) << "the same model gives the same bytes";
}

TEST_F(TokenizerArchivesTest, CallersShareAnErrorAndHoldTheModelNoLonger) {
  Load("nano.gguf");
  archives_.reset();
  Event begun;
  Event may_go_on;
  std::atomic<int> made = 0;
  TokenizerArchives archives(host_, [&](const Engine&) -> absl::StatusOr<TokenizerArchive> {
    ++made;
    begun.Notify();
    EXPECT_TRUE(may_go_on.WaitFor(kLong));
    return absl::UnimplementedError("no such tokenizer");
  });
  std::atomic<int> refused = 0;
  const auto refuse = [&](const absl::StatusOr<TokenizerArchives::Archive>& archive) {
    EXPECT_TRUE(absl::IsUnimplemented(archive.status())) << archive.status();
    ++refused;
  };
  archives.Get(refuse);
  ASSERT_TRUE(begun.WaitFor(kLong));
  constexpr int kCalls = 100;
  for (int i = 0; i < kCalls; ++i) archives.Get(refuse);
  may_go_on.Notify();
  // Unload waits for all holders of the model.
  Unload();
  EXPECT_EQ(refused, kCalls + 1);
  EXPECT_EQ(made, 2);
}

TEST_F(TokenizerArchivesTest, MayGoBeforeTheHost) {
  Load("nano.gguf");
  ASSERT_TRUE(Get().ok());
  archives_.reset();
  Unload();
}

}  // namespace
}  // namespace orcd
