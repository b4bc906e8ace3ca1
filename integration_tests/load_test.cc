// Load and Unload: progress, the model's description, cancellation, and memory that comes back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "integration_tests/gguf_editor.h"
#include "integration_tests/test_models.h"
#include "integration_tests/worker_fixture.h"
#include "testing/files.h"

namespace orcd::testing {
namespace {

using ::grpc::StatusCode;
using ::testing::HasSubstr;

std::string Sha256(const std::string& bytes) {
  std::string sum(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
         reinterpret_cast<unsigned char*>(sum.data()));
  return sum;
}

class LoadTest : public WorkerTest {
 protected:
  static v1::LoadRequest Request(const std::string& model) {
    v1::LoadRequest request;
    request.set_model(model);
    return request;
  }
};

TEST_F(LoadTest, ProgressThenDescription) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  WriteSlowToLoadModel(models().File("large.gguf"));
  const LoadResult result = client().Load("large.gguf");
  ASSERT_TRUE(result.error.ok()) << result.error;
  ASSERT_TRUE(result.loaded);
  EXPECT_TRUE(result.loaded_last);
  ASSERT_FALSE(result.progress.empty());

  absl::Time last = result.begun;
  absl::Duration longest_gap = absl::ZeroDuration();
  const v1::LoadProgress* before = nullptr;
  for (const LoadResult::Progress& p : result.progress) {
    longest_gap = std::max(longest_gap, p.arrival - last);
    last = p.arrival;
    const v1::LoadProgress& progress = p.progress;
    EXPECT_NE(progress.stage(), v1::LOAD_STAGE_UNSPECIFIED);
    EXPECT_LE(progress.bytes_done(), progress.bytes_total());
    EXPECT_TRUE(progress.has_elapsed());
    if (before != nullptr) {
      EXPECT_GE(progress.stage(), before->stage());
      if (progress.stage() == before->stage()) {
        EXPECT_GE(progress.bytes_done(), before->bytes_done());
      }
    }
    before = &progress;
  }
  longest_gap = std::max(longest_gap, result.ended - last);
  std::cout << "loaded in " << result.ended - result.begun << ", " << result.progress.size()
            << " progress messages, longest gap " << longest_gap << "\n";
  // The API guarantees a message every 250 ms; a loaded machine may deliver a message a little
  // late.
  EXPECT_LT(longest_gap, Bound(absl::Milliseconds(350)));
}

// The self-check works within any small limits, and requests that fit are served.
TEST_F(LoadTest, SmallLimits) {
  // 16 tokens of the nano model's keys and values take 16 KiB.
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {"--max-step-tokens", "1"},
           {"--max-step-tokens", "2"},
           {"--max-step-tokens", "4", "--max-seqs", "2"},
           {"--max-context", "6"},
           {"--max-context", "8"},
           {"--max-context", "16", "--max-step-tokens", "3"},
           {"--kv-cache-bytes", "16KiB"},
           {"--kv-cache-bytes", "16KiB", "--block-tokens", "5", "--max-step-tokens", "4"},
           {"--kv-cache-bytes", "112KiB", "--block-tokens", "1", "--max-seqs", "1"}}) {
    SCOPED_TRACE(absl::StrJoin(args, " "));
    ASSERT_NO_FATAL_FAILURE(StartLoaded(args));
    // Some of these workers hold only five tokens in all.
    const Generation generation = client().Generate(TokenRequest({1, 2, 3}, 2));
    EXPECT_TRUE(IsComplete(generation));
    ASSERT_NO_FATAL_FAILURE(StopWorker());
  }
}

TEST_F(LoadTest, DescriptionIsOfTheFile) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  const LoadResult result = client().Load("nano.gguf");
  ASSERT_TRUE(result.loaded) << result.error;
  const v1::ModelDescription& model = *result.loaded;
  const std::string bytes = ReadFile(models().File("nano.gguf"));
  EXPECT_EQ(model.model_id(), "nano");
  EXPECT_EQ(model.file(), "nano.gguf");
  // The file is one chunk, so the digest is the hash of its hash.
  EXPECT_EQ(model.digest(),
            absl::StrCat("sha256-tree:", absl::BytesToHexString(Sha256(Sha256(bytes)))));
  EXPECT_EQ(model.architecture(), "qwen2");
  EXPECT_EQ(model.size_bytes(), bytes.size());
  EXPECT_EQ(model.layers(), 2u);
  EXPECT_EQ(model.hidden(), model.heads() * model.head_dim());
  EXPECT_EQ(model.heads() % model.kv_heads(), 0u);
  EXPECT_GT(model.vocab(), 256u);
  EXPECT_GT(model.context_length(), 0u);
  EXPECT_GT(model.parameters(), uint64_t{model.vocab()} * model.hidden());
  EXPECT_FALSE(model.quantization().empty());
  EXPECT_GT(model.eog_token_ids_size(), 0);
  EXPECT_TRUE(model.chat_supported());
  EXPECT_EQ(client().Status().model().SerializeAsString(), model.SerializeAsString());
}

TEST_F(LoadTest, TheFilesSamplingIsDescribedAndIsTheDefault) {
  GgufEditor file(models().File("nano.gguf"));
  file.Set("general.sampling.temp", kGgufF32, F32Bytes(0));
  file.Set("general.sampling.top_p", kGgufF32, F32Bytes(7));
  file.Write(models().File("greedy.gguf"));
  const auto first_ids = [&](uint64_t seed) {
    v1::GenerateRequest request = TextRequest("Hello", 12);
    request.mutable_sampling()->set_seed(seed);
    request.mutable_stop()->set_ignore_eog(true);
    return client().Generate(request).ids;
  };
  for (const bool off : {false, true}) {
    ASSERT_NO_FATAL_FAILURE(StartWorker(off ? std::vector<std::string>{"--no-file-sampling"}
                                            : std::vector<std::string>{}));
    const LoadResult result = client().Load("greedy.gguf");
    ASSERT_TRUE(result.loaded) << result.error;
    EXPECT_EQ(result.loaded->has_sampling_defaults(), !off);
    if (!off) {
      EXPECT_TRUE(result.loaded->sampling_defaults().has_temperature());
      EXPECT_EQ(result.loaded->sampling_defaults().temperature(), 0);
      EXPECT_FALSE(result.loaded->sampling_defaults().has_top_p());
      EXPECT_THAT(worker().Log(), HasSubstr("general.sampling.top_p is 7"));
    }
    EXPECT_EQ(first_ids(1) == first_ids(2), !off);
    ASSERT_NO_FATAL_FAILURE(StopWorker());
  }
}

TEST_F(LoadTest, TokensThatTheFileSuppressesAreNeverDrawn) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  const auto ids = [&](float temperature) {
    v1::GenerateRequest request = TextRequest("Hello", 20);
    request.mutable_sampling()->set_temperature(temperature);
    request.mutable_sampling()->set_seed(1);
    request.mutable_stop()->set_ignore_eog(true);
    return client().Generate(request).ids;
  };
  ASSERT_TRUE(client().Load("nano.gguf").loaded);
  std::set<uint32_t> suppressed;
  for (const float temperature : {0.0f, 1.0f}) {
    const std::vector<uint32_t> free = ids(temperature);
    ASSERT_EQ(free.size(), 20u);
    suppressed.insert(free.begin(), free.begin() + 10);
  }
  ASSERT_TRUE(client().Unload(false).ok());

  std::string elements;
  for (const uint32_t id : suppressed) elements += U32Bytes(id);
  GgufEditor file(models().File("nano.gguf"));
  file.Set("tokenizer.ggml.suppress_tokens", kGgufArray,
           U32Bytes(kGgufU32) + U64Bytes(suppressed.size()) + elements);
  file.Write(models().File("suppressing.gguf"));
  ASSERT_TRUE(client().Load("suppressing.gguf").loaded);
  for (const float temperature : {0.0f, 1.0f}) {
    const std::vector<uint32_t> drawn = ids(temperature);
    EXPECT_EQ(drawn.size(), 20u);
    for (const uint32_t id : drawn) EXPECT_FALSE(suppressed.contains(id)) << id;
  }
}

TEST_F(LoadTest, RequestsBringTemplatesIfTheWorkerAllowsIt) {
  ASSERT_NO_FATAL_FAILURE(StartWorker({"--allow-request-templates"}));
  ASSERT_TRUE(client().Load("nano.gguf").loaded);
  v1::TokenizeRequest text;
  text.mutable_text()->set_text("[Hello]");
  v1::TokenizeRequest chat;
  *chat.mutable_chat() = ChatRequest("Hello", 1).chat();
  chat.mutable_chat()->set_chat_template("[{{ messages[0].content }}]");
  EXPECT_EQ(client().Tokens(chat), client().Tokens(text));
  v1::GenerateRequest request;
  *request.mutable_chat() = chat.chat();
  request.mutable_stop()->set_max_tokens(1);
  EXPECT_TRUE(IsComplete(client().Generate(request)));
}

TEST_F(LoadTest, DigestIsOfTheBytesAndNothingElse) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  std::filesystem::copy_file(models().File("nano.gguf"), models().File("copy.gguf"));
  WriteNanoModel(models().File("other.gguf"), /*seed=*/2);
  std::vector<std::string> digests;
  for (const char* name : {"nano.gguf", "copy.gguf", "other.gguf"}) {
    const LoadResult result = client().Load(name);
    ASSERT_TRUE(result.loaded) << result.error;
    digests.push_back(result.loaded->digest());
    ASSERT_TRUE(client().Unload(false).ok());
  }
  EXPECT_EQ(digests[0], digests[1]);
  EXPECT_NE(digests[0], digests[2]);
}

TEST_F(LoadTest, NameAndSumMayBeGiven) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  v1::LoadRequest request = Request("nano.gguf");
  request.set_model_id("my-model");
  request.set_sha256(absl::BytesToHexString(Sha256(ReadFile(models().File("nano.gguf")))));
  const LoadResult result = client().Load(request);
  ASSERT_TRUE(result.loaded) << result.error;
  EXPECT_EQ(result.loaded->model_id(), "my-model");
  v1::GenerateRequest generate = TextRequest("Hello", 3);
  generate.set_model_id("my-model");
  EXPECT_TRUE(IsComplete(client().Generate(generate)));
  generate.set_model_id("nano");
  EXPECT_TRUE(IsError(client().Generate(generate).error, StatusCode::NOT_FOUND));
}

TEST_F(LoadTest, LoadedModelIsDescribedAtOnceAndLeftAlone) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  GenerateCall call(stub(), EndlessRequest("running"), absl::Seconds(60));
  ASSERT_TRUE(call.ReadUntilTokens(1));
  const LoadResult again = client().Load("nano.gguf");
  ASSERT_TRUE(again.loaded) << again.error;
  EXPECT_EQ(again.loaded->SerializeAsString(), client().Status().model().SerializeAsString());
  EXPECT_TRUE(call.ReadUntilTokens(call.so_far().ids.size() + 5));
  EXPECT_EQ(client().Status().state(), v1::WORKER_STATE_READY);
}

TEST_F(LoadTest, AnotherModelNeedsReplace) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  WriteNanoModel(models().File("other.gguf"), /*seed=*/2);
  const LoadResult refused = client().Load("other.gguf");
  EXPECT_TRUE(IsError(refused.error, StatusCode::FAILED_PRECONDITION, "MODEL_LOADED"));
  EXPECT_THAT(refused.error.message, HasSubstr("replace"));

  v1::LoadRequest request = Request("other.gguf");
  request.set_replace(true);
  {
    GenerateCall call(stub(), EndlessRequest("running"), absl::Seconds(60));
    ASSERT_TRUE(call.ReadUntilStarted());
    EXPECT_TRUE(
        IsError(client().Load(request).error, StatusCode::FAILED_PRECONDITION, "REQUESTS_RUNNING"));
    EXPECT_TRUE(call.ReadUntilTokens(call.so_far().ids.size() + 5)) << "it was harmed";
  }
  ASSERT_TRUE(client().WaitForQuiet());
  const LoadResult replaced = client().Load(request);
  ASSERT_TRUE(replaced.loaded) << replaced.error;
  EXPECT_EQ(replaced.loaded->model_id(), "other");
  EXPECT_TRUE(IsComplete(client().Generate(TextRequest("Hello", 3))));
}

TEST_F(LoadTest, AFileThatIsTouchedIsServedOn) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  GenerateCall call(stub(), EndlessRequest("running"), absl::Seconds(60));
  ASSERT_TRUE(call.ReadUntilTokens(1));
  const std::string path = models().File("nano.gguf");
  for (int i = 0; i < 3; ++i) {
    std::filesystem::last_write_time(
        path, std::filesystem::last_write_time(path) + std::chrono::seconds(1));
    EXPECT_TRUE(call.ReadUntilTokens(call.so_far().ids.size() + 5));
    EXPECT_TRUE(client().Load("nano.gguf").loaded);
  }
  EXPECT_EQ(client().Status().state(), v1::WORKER_STATE_READY);
}

TEST_F(LoadTest, AFileThatWasReplacedIsLoadedWithReplace) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  const std::string old = client().Status().model().digest();
  WriteNanoModel(models().File("new"), /*seed=*/2);
  std::filesystem::rename(models().File("new"), models().File("nano.gguf"));
  const LoadResult told = client().Load("nano.gguf");
  EXPECT_TRUE(IsError(told.error, StatusCode::FAILED_PRECONDITION, "MODEL_LOADED"));
  EXPECT_THAT(told.error.message, HasSubstr(old));
  EXPECT_TRUE(IsComplete(client().Generate(TextRequest("Hello", 3))));
  v1::LoadRequest request = Request("nano.gguf");
  request.set_replace(true);
  const LoadResult replaced = client().Load(request);
  ASSERT_TRUE(replaced.loaded) << replaced.error;
  EXPECT_NE(replaced.loaded->digest(), old);
  EXPECT_THAT(told.error.message, HasSubstr(replaced.loaded->digest()));

  // A failed replacement leaves the loaded model in place.
  std::filesystem::copy_file(models().File("nano.gguf"), models().File("cut"));
  std::filesystem::resize_file(models().File("cut"), 1000);
  std::filesystem::rename(models().File("cut"), models().File("nano.gguf"));
  EXPECT_TRUE(
      IsError(client().Load(request).error, StatusCode::INVALID_ARGUMENT, "GGUF_TRUNCATED"));
  EXPECT_TRUE(IsComplete(client().Generate(TextRequest("Hello", 3))));
  EXPECT_EQ(client().Status().model().digest(), replaced.loaded->digest());
}

TEST_F(LoadTest, CancelledLoadIsRolledBack) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  WriteSlowToLoadModel(models().File("large.gguf"));
  const int64_t before = worker().ReadMemory().anonymous;
  const LoadResult result = client().Load(
      Request("large.gguf"), absl::Seconds(60),
      [](grpc::ClientContext& context, const v1::LoadProgress&) { context.TryCancel(); });
  EXPECT_EQ(result.error.code, StatusCode::CANCELLED) << result.error;
  EXPECT_FALSE(result.loaded);
  ASSERT_TRUE(client().WaitForState(v1::WORKER_STATE_IDLE));
  const v1::WorkerStatus status = client().Status();
  EXPECT_FALSE(status.has_model());
  EXPECT_FALSE(status.has_load());
  EXPECT_EQ(status.memory().weights_bytes(), 0u);
  if (!kSanitized) {
    EXPECT_LT(worker().ReadMemory().anonymous - before, int64_t{64} << 20);
  }
  const LoadResult later = client().Load("large.gguf");
  ASSERT_TRUE(later.loaded) << later.error;
  EXPECT_TRUE(IsComplete(client().Generate(TextRequest("Hello", 3))));
}

// While a worker loads, every other request is refused with the reason and a time to retry.
TEST_F(LoadTest, WhileLoadingEverythingElseWaits) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  WriteSlowToLoadModel(models().File("large.gguf"));
  RpcError second_load;
  RpcError generate;
  v1::WorkerStatus status;
  grpc::health::v1::HealthCheckResponse::ServingStatus ready;
  grpc::health::v1::HealthCheckResponse::ServingStatus live;
  bool asked = false;
  const LoadResult result = client().Load(Request("large.gguf"), absl::Seconds(120),
                                          [&](grpc::ClientContext&, const v1::LoadProgress&) {
                                            if (asked) return;
                                            asked = true;
                                            status = client().Status();
                                            second_load = client().Load("nano.gguf").error;
                                            generate =
                                                client().Generate(TextRequest("Hello", 3)).error;
                                            EXPECT_TRUE(client().Check("", &ready).ok());
                                            EXPECT_TRUE(client().Check("liveness", &live).ok());
                                          });
  ASSERT_TRUE(result.loaded) << result.error;
  ASSERT_TRUE(asked);
  EXPECT_EQ(status.state(), v1::WORKER_STATE_LOADING);
  EXPECT_TRUE(status.has_load());
  EXPECT_TRUE(IsError(second_load, StatusCode::UNAVAILABLE, "LOADING"));
  EXPECT_TRUE(second_load.retry_delay);
  EXPECT_TRUE(IsError(generate, StatusCode::UNAVAILABLE, "LOADING"));
  EXPECT_TRUE(generate.retry_delay);
  EXPECT_EQ(ready, grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(live, grpc::health::v1::HealthCheckResponse::SERVING);
}

TEST_F(LoadTest, UnloadGivesEverythingBack) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  const int64_t before = worker().ReadMemory().resident;
  ASSERT_TRUE(client().Load("nano.gguf").loaded);
  ASSERT_TRUE(IsComplete(client().Generate(TextRequest("Hello", 3))));
  v1::UnloadResponse response;
  ASSERT_TRUE(client().Unload(false, &response).ok());
  EXPECT_EQ(response.model_id(), "nano");
  EXPECT_EQ(response.cancelled_requests(), 0u);
  const v1::WorkerStatus status = client().Status();
  EXPECT_EQ(status.state(), v1::WORKER_STATE_IDLE);
  EXPECT_FALSE(status.has_model());
  EXPECT_FALSE(status.has_kv_blocks());
  EXPECT_EQ(status.memory().weights_bytes(), 0u);
  EXPECT_EQ(status.memory().kv_bytes(), 0u);
  EXPECT_TRUE(IsError(client().Generate(TextRequest("Hello", 3)).error,
                      StatusCode::FAILED_PRECONDITION, "MODEL_NOT_LOADED"));

  // Loads and unloads leak nothing: resident memory settles.
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(client().Load("nano.gguf").loaded);
    ASSERT_TRUE(client().Unload(false).ok());
  }
  if (!kSanitized) {
    EXPECT_LT(worker().ReadMemory().resident - before, int64_t{48} << 20);
  }
}

TEST_F(LoadTest, UnloadOfABusyModelNeedsForce) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  GenerateCall call(stub(), EndlessRequest("running"), absl::Seconds(60));
  ASSERT_TRUE(call.ReadUntilTokens(1));
  EXPECT_TRUE(IsError(client().Unload(false), StatusCode::FAILED_PRECONDITION, "REQUESTS_RUNNING"));
  EXPECT_TRUE(call.ReadUntilTokens(call.so_far().ids.size() + 5)) << "it was harmed";

  v1::UnloadResponse response;
  ASSERT_TRUE(client().Unload(true, &response).ok());
  EXPECT_EQ(response.cancelled_requests(), 1u);
  const Generation& generation = call.Finish();
  EXPECT_TRUE(IsError(generation.error, StatusCode::CANCELLED));
  EXPECT_EQ(generation.reason(), v1::FINISH_REASON_CANCELLED);
  EXPECT_EQ(client().Status().state(), v1::WORKER_STATE_IDLE);
  ASSERT_TRUE(client().Load("nano.gguf").loaded);
}

TEST_F(LoadTest, ACancelledReplacementLeavesTheModel) {
  ASSERT_NO_FATAL_FAILURE(StartLoaded());
  WriteSlowToLoadModel(models().File("large.gguf"));
  v1::LoadRequest request = Request("large.gguf");
  request.set_replace(true);
  // Cancels while the worker verifies the file.
  const LoadResult result = client().Load(
      request, absl::Seconds(60),
      [](grpc::ClientContext& context, const v1::LoadProgress&) { context.TryCancel(); });
  EXPECT_EQ(result.error.code, StatusCode::CANCELLED) << result.error;
  ASSERT_TRUE(client().WaitForState(v1::WORKER_STATE_READY));
  EXPECT_EQ(client().Status().model().model_id(), "nano");
  EXPECT_TRUE(IsComplete(client().Generate(TextRequest("Hello", 3))));
}

// The layout of huggingface_hub's cache; the file's name is in capitals, as some repositories have
// it.
TEST_F(LoadTest, ASnapshotOfTheHuggingFaceCacheIsAModelDirectory) {
  const std::filesystem::path folder = models().File("models--Qwen--Qwen2.5-0.5B-Instruct-GGUF");
  const std::filesystem::path snapshot = folder / "snapshots" / "9217f5db79a2";
  std::filesystem::create_directories(folder / "blobs");
  std::filesystem::create_directories(snapshot);
  std::filesystem::rename(models().File("nano.gguf"), folder / "blobs" / "74a4da8c9fdb");
  std::filesystem::create_symlink("../../blobs/74a4da8c9fdb", snapshot / "NANO.GGUF");
  WorkerOptions options;
  options.model_dir = snapshot.string();
  options.args = {"--model", "NANO.GGUF"};
  const auto started = WorkerProcess::Start(options);
  ASSERT_TRUE(started.ok()) << started.status();
  {
    WorkerClient own((*started)->address());
    ASSERT_TRUE(own.WaitForState(v1::WORKER_STATE_READY)) << (*started)->Log();
    EXPECT_EQ(own.Status().model().model_id(), "NANO");
    EXPECT_TRUE(IsComplete(own.Generate(TextRequest("Hello", 3))));
  }
  EXPECT_EQ((*started)->Terminate()->exit_code, 0);
  // For the cache's parent directory the error message lists the files in it.
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  EXPECT_THAT(
      client().Load("NANO.GGUF").error.message,
      HasSubstr("models--Qwen--Qwen2.5-0.5B-Instruct-GGUF/snapshots/9217f5db79a2/NANO.GGUF"));
}

// Many clients load, unload and generate at once. Each gets a sensible answer, and the worker is
// usable in the end.
TEST_F(LoadTest, StormOfLoadsAndUnloads) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  WriteNanoModel(models().File("other.gguf"), /*seed=*/2);
  std::vector<std::future<void>> clients;
  for (int c = 0; c < 6; ++c) {
    clients.push_back(std::async(std::launch::async, [&, c] {
      WorkerClient own(worker().address());
      for (int i = 0; i < 15; ++i) {
        RpcError error;
        if (c < 2) {
          v1::LoadRequest request = Request(c == 0 ? "nano.gguf" : "other.gguf");
          request.set_replace(i % 2 == 0);
          error = own.Load(request).error;
        } else if (c == 2) {
          error = own.Unload(i % 2 == 0);
        } else {
          const Generation generation = own.Generate(TextRequest("Hello", 10 + i));
          error = generation.error;
          EXPECT_EQ(generation.violation, "");
        }
        if (error.ok()) continue;
        EXPECT_EQ(error.domain, "orcd") << error;
        EXPECT_TRUE(error.code == StatusCode::FAILED_PRECONDITION ||
                    error.code == StatusCode::UNAVAILABLE || error.code == StatusCode::CANCELLED)
            << error;
      }
    }));
  }
  for (auto& done : clients) done.get();
  v1::LoadRequest request = Request("nano.gguf");
  request.set_replace(true);
  const LoadResult result = client().Load(request);
  ASSERT_TRUE(result.loaded) << result.error;
  EXPECT_TRUE(IsComplete(client().Generate(TextRequest("Hello", 3))));
}

}  // namespace
}  // namespace orcd::testing
