#include "tools/orcdctl/commands.h"

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"
#include "tools/orcdctl/exit_codes.h"

namespace orcd::ctl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Answers as its fields say, and remembers the requests.
class FakeWorker final : public v1::Worker::Service {
 public:
  grpc::Status Health(grpc::ServerContext*, const v1::HealthRequest*,
                      v1::HealthResponse* response) override {
    response->mutable_status()->set_state(state);
    response->mutable_status()->set_worker_id("w");
    return status;
  }

  grpc::Status Load(grpc::ServerContext* context, const v1::LoadRequest* request,
                    grpc::ServerWriter<v1::LoadResponse>* writer) override {
    Remember(*request, load);
    for (int percent = 0; percent <= 100; percent += 10) {
      v1::LoadResponse response;
      response.mutable_progress()->set_stage(v1::LOAD_STAGE_VERIFY);
      response.mutable_progress()->set_bytes_done(percent);
      response.mutable_progress()->set_bytes_total(100);
      writer->Write(response);
    }
    if (hangs) return WaitForCancel(context);
    if (!status.ok()) return status;
    v1::LoadResponse response;
    response.mutable_loaded()->set_model_id("tiny");
    writer->Write(response);
    return grpc::Status::OK;
  }

  grpc::Status Unload(grpc::ServerContext*, const v1::UnloadRequest* request,
                      v1::UnloadResponse* response) override {
    Remember(*request, unload);
    if (has_model) response->set_model_id("tiny");
    if (request->force()) response->set_cancelled_requests(2);
    return status;
  }

  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    {
      std::lock_guard lock(mu);
      generates.push_back(*request);
    }
    changed.notify_all();
    if (!status.ok()) return status;
    v1::GenerateResponse response;
    response.mutable_started()->set_request_id("r-1");
    response.mutable_started()->set_seed(99);
    writer->Write(response);
    for (const std::string& delta : deltas) {
      response.mutable_delta()->set_text(delta);
      writer->Write(response);
    }
    if (hangs) return WaitForCancel(context);
    if (forgets_finished) return grpc::Status::OK;
    response.mutable_finished()->set_reason(finish_reason);
    response.mutable_finished()->mutable_usage()->set_generated_tokens(3);
    writer->Write(response);
    return grpc::Status::OK;
  }

  grpc::Status Tokenize(grpc::ServerContext*, const v1::TokenizeRequest* request,
                        v1::TokenizeResponse* response) override {
    Remember(*request, tokenize);
    for (const uint32_t id : {7u, 8u, 151643u}) response->add_token_ids(id);
    return status;
  }

  grpc::Status Cancel(grpc::ServerContext*, const v1::CancelRequest* request,
                      v1::CancelResponse* response) override {
    response->set_found(request->request_id() == "live");
    return status;
  }

  grpc::Status Drain(grpc::ServerContext*, const v1::DrainRequest* request,
                     grpc::ServerWriter<v1::DrainResponse>* writer) override {
    Remember(*request, drain);
    v1::DrainResponse response;
    int remaining = 9;
    for (const uint32_t running : {2u, 2u, 1u}) {
      response.set_running_requests(running);
      response.mutable_remaining()->set_seconds(remaining--);
      writer->Write(response);
    }
    if (!forgets_finished) {
      response.set_running_requests(0);
      response.set_safe_to_delete(true);
      writer->Write(response);
    }
    return status;
  }

  bool WaitForGenerates(size_t n) {
    std::unique_lock lock(mu);
    return changed.wait_for(lock, std::chrono::seconds(20), [&] { return generates.size() >= n; });
  }

  grpc::Status status;
  v1::WorkerState state = v1::WORKER_STATE_READY;
  v1::FinishReason finish_reason = v1::FINISH_REASON_EOG;
  std::vector<std::string> deltas = {"Hel", "lo\x1b[31m", "!"};
  bool has_model = true;
  // Makes Load and Generate run until they are cancelled.
  bool hangs = false;
  // Makes Generate omit Finished, and Drain omit safe_to_delete.
  bool forgets_finished = false;

  v1::LoadRequest load;
  v1::UnloadRequest unload;
  v1::TokenizeRequest tokenize;
  v1::DrainRequest drain;
  std::vector<v1::GenerateRequest> generates;
  // Guards the remembered requests.
  std::mutex mu;
  std::condition_variable changed;

 private:
  template <typename Request>
  void Remember(const Request& request, Request& place) {
    std::lock_guard lock(mu);
    place = request;
  }

  static grpc::Status WaitForCancel(grpc::ServerContext* context) {
    while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return grpc::Status::CANCELLED;
  }
};

class CommandsTest : public ::testing::Test {
 protected:
  CommandsTest() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&worker_);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }

  // Runs a command line against the fake and returns its exit code.
  int Run(std::vector<std::string> args) {
    out_.str("");
    err_.str("");
    args.insert(args.begin(), {"--address", address_});
    const CommandLineResult result = ParseCommandLine(args);
    if (!result.command_line) {
      ADD_FAILURE() << result.output;
      return -1;
    }
    const CommandLine& line = *result.command_line;
    Session session =
        NewSession(line.address, *ReadCredentials(line.credentials), console_, interrupt_);
    session.json = line.json;
    session.timeout = line.timeout;
    const int exit_code = RunCommand(session, line.command);
    // Tells ThreadSanitizer that the worker remembered the request before it answered.
    std::lock_guard lock(worker_.mu);
    return exit_code;
  }

  // Every line of stdout as JSON.
  std::vector<nlohmann::json> JsonLines() const {
    std::vector<nlohmann::json> result;
    std::istringstream lines(out_.str());
    for (std::string line; std::getline(lines, line);) {
      result.push_back(nlohmann::json::parse(line));
    }
    return result;
  }

  FakeWorker worker_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  std::istringstream in_;
  std::ostringstream out_;
  std::ostringstream err_;
  Console console_{in_, out_, err_};
  int idle_interrupts_ = 0;
  Interrupt interrupt_{[this] { ++idle_interrupts_; }};
};

TEST_F(CommandsTest, HealthAnswersInWordsAndJson) {
  EXPECT_EQ(Run({"health"}), kExitOk);
  EXPECT_THAT(out_.str(), StartsWith("state   READY\n"));
  EXPECT_EQ(Run({"health", "--json"}), kExitOk);
  ASSERT_EQ(JsonLines().size(), 1u);
  EXPECT_EQ(JsonLines()[0]["status"]["state"], "WORKER_STATE_READY");
  EXPECT_EQ(JsonLines()[0]["status"]["worker_id"], "w");
  EXPECT_EQ(err_.str(), "");
}

TEST_F(CommandsTest, HealthReadyIsAQuestion) {
  EXPECT_EQ(Run({"health", "--ready"}), kExitOk);
  worker_.state = v1::WORKER_STATE_LOADING;
  EXPECT_EQ(Run({"health"}), kExitOk);
  EXPECT_EQ(Run({"health", "--ready"}), kExitFailed);
}

TEST_F(CommandsTest, NobodyThereIsAnExitCodeOfItsOwn) {
  server_->Shutdown();
  EXPECT_EQ(Run({"health"}), kExitUnreachable);
  EXPECT_EQ(out_.str(), "");
  EXPECT_THAT(err_.str(), StartsWith("UNAVAILABLE: "));
  EXPECT_THAT(err_.str(), HasSubstr("does a worker listen at " + address_));
}

TEST_F(CommandsTest, AnErrorIsExplained) {
  google::rpc::Status rpc;
  google::rpc::ErrorInfo info;
  info.set_reason("MODEL_NOT_LOADED");
  rpc.add_details()->PackFrom(info);
  worker_.status = grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "no model is loaded",
                                rpc.SerializeAsString());
  EXPECT_EQ(Run({"generate", "hi"}), kExitFailed);
  EXPECT_EQ(err_.str(), "FAILED_PRECONDITION: no model is loaded\n  reason: MODEL_NOT_LOADED\n");
  EXPECT_EQ(out_.str(), "");
}

TEST_F(CommandsTest, LoadShowsMilestonesOnAPipe) {
  EXPECT_EQ(Run({"load", "tiny.gguf", "--id", "t", "--replace"}), kExitOk);
  EXPECT_EQ(worker_.load.model(), "tiny.gguf");
  EXPECT_EQ(worker_.load.model_id(), "t");
  EXPECT_TRUE(worker_.load.replace());
  EXPECT_THAT(out_.str(), StartsWith("verify       0%  0 B of 100 B\n"
                                     "verify      30%  30 B of 100 B\n"
                                     "verify      50%  50 B of 100 B\n"
                                     "verify      80%  80 B of 100 B\n"
                                     "verify     100%  100 B of 100 B\n"
                                     "model    tiny\n"));
  EXPECT_THAT(out_.str(), Not(HasSubstr("\x1b")));
}

TEST_F(CommandsTest, LoadDrawsABarOnATerminal) {
  console_.out_is_terminal = true;
  EXPECT_EQ(Run({"load", "tiny.gguf"}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("\r\x1b[Kverify     [###......"));
  EXPECT_THAT(out_.str(), HasSubstr("\r\x1b[Kmodel    tiny\n"));
}

TEST_F(CommandsTest, LoadSpeaksJsonALine) {
  EXPECT_EQ(Run({"load", "tiny.gguf", "--json"}), kExitOk);
  const auto lines = JsonLines();
  ASSERT_EQ(lines.size(), 12u);
  EXPECT_EQ(lines[3]["progress"]["bytes_done"], "30");
  EXPECT_EQ(lines[11]["loaded"]["model_id"], "tiny");
}

TEST_F(CommandsTest, UnloadAndCancelSayWhatHappened) {
  EXPECT_EQ(Run({"unload", "--force"}), kExitOk);
  EXPECT_EQ(out_.str(), "unloaded tiny; cancelled 2 requests\n");
  worker_.has_model = false;
  EXPECT_EQ(Run({"unload"}), kExitOk);
  EXPECT_EQ(out_.str(), "nothing was loaded\n");
  EXPECT_EQ(Run({"cancel", "live"}), kExitOk);
  EXPECT_EQ(out_.str(), "ended live\n");
  EXPECT_EQ(Run({"cancel", "gone"}), kExitOk);
  EXPECT_EQ(out_.str(), "no live request has the id gone\n");
  EXPECT_EQ(Run({"cancel", "gone", "--json"}), kExitOk);
  EXPECT_EQ(out_.str(), "{\"found\":false}\n");
}

TEST_F(CommandsTest, TokenizeTakesWordsOrStdin) {
  EXPECT_EQ(Run({"tokenize", "a", "b", "--parse-special"}), kExitOk);
  EXPECT_EQ(out_.str(), "7 8 151643\n");
  EXPECT_EQ(worker_.tokenize.text().text(), "a b");
  EXPECT_TRUE(worker_.tokenize.text().parse_special());
  in_.str("from\nstdin\n");
  EXPECT_EQ(Run({"tokenize", "-", "--json"}), kExitOk);
  EXPECT_EQ(worker_.tokenize.text().text(), "from\nstdin\n");
  EXPECT_EQ(out_.str(), "{\"token_ids\":[7,8,151643]}\n");
}

TEST_F(CommandsTest, DrainReportsChangesUntilItIsSafe) {
  EXPECT_EQ(Run({"drain", "--timeout", "1500ms"}), kExitOk);
  EXPECT_EQ(worker_.drain.timeout().seconds(), 1);
  EXPECT_EQ(worker_.drain.timeout().nanos(), 500'000'000);
  EXPECT_EQ(out_.str(),
            "draining: 2 running, 0 waiting, ended in 9.0 s at the latest\n"
            "draining: 1 running, 0 waiting, ended in 7.0 s at the latest\n"
            "drained: the worker may be deleted\n");
  worker_.forgets_finished = true;
  EXPECT_EQ(Run({"drain"}), kExitFailed);
  EXPECT_FALSE(worker_.drain.has_timeout());
}

TEST_F(CommandsTest, GenerateSendsAChatAndStreamsTheTextAsItIs) {
  EXPECT_EQ(Run({"generate", "Say", "hello", "--system", "Be brief."}), kExitOk);
  EXPECT_EQ(out_.str(), "Hello\x1b[31m!");
  EXPECT_EQ(err_.str(), "");
  const auto& chat = worker_.generates.at(0).chat();
  ASSERT_EQ(chat.messages_size(), 2);
  EXPECT_EQ(chat.messages(0).role(), v1::CHAT_ROLE_SYSTEM);
  EXPECT_EQ(chat.messages(1).role(), v1::CHAT_ROLE_USER);
  EXPECT_EQ(chat.messages(1).content(), "Say hello");
}

TEST_F(CommandsTest, GenerateIsSafeAndEndsItsLineOnATerminal) {
  console_.out_is_terminal = true;
  EXPECT_EQ(Run({"generate", "hi", "--stats"}), kExitOk);
  EXPECT_EQ(out_.str(), "Hello[31m!\n");
  EXPECT_THAT(err_.str(), StartsWith("[3 tokens in 0 ms"));
  EXPECT_THAT(err_.str(), HasSubstr("end of turn · seed 99 · request r-1]\n"));
}

TEST_F(CommandsTest, StatsHaveALineOfTheirOwnWhereTextGoesToAPipe) {
  EXPECT_EQ(Run({"generate", "hi", "--stats"}), kExitOk);
  EXPECT_EQ(out_.str(), "Hello\x1b[31m!");
  EXPECT_THAT(err_.str(), StartsWith("\n[3 tokens in 0 ms"));
}

TEST_F(CommandsTest, GenerateSaysThatAFormWasCut) {
  const std::vector<std::string> with_form = {"generate", "hi", "--json-object"};
  EXPECT_EQ(Run(with_form), kExitOk);
  EXPECT_EQ(err_.str(), "");
  worker_.finish_reason = v1::FINISH_REASON_MAX_TOKENS;
  EXPECT_EQ(Run(with_form), kExitOk);
  EXPECT_EQ(out_.str(), "Hello\x1b[31m!");
  EXPECT_THAT(err_.str(), StartsWith("\ncut: max tokens reached"));
  EXPECT_EQ(Run({"generate", "hi"}), kExitOk);
  EXPECT_EQ(err_.str(), "") << "text may end anywhere";
  EXPECT_EQ(Run({"generate", "hi", "--json-object", "--json"}), kExitOk);
  EXPECT_EQ(err_.str(), "");
}

TEST_F(CommandsTest, GenerateRawTakesTextFromStdin) {
  in_.str("Once upon");
  EXPECT_EQ(Run({"generate", "--raw", "--parse-special", "--max-tokens", "3"}), kExitOk);
  EXPECT_EQ(worker_.generates.at(0).text().text(), "Once upon");
  EXPECT_TRUE(worker_.generates.at(0).text().parse_special());
  EXPECT_EQ(worker_.generates.at(0).stop().max_tokens(), 3u);
}

TEST_F(CommandsTest, GenerateSpeaksJsonALine) {
  EXPECT_EQ(Run({"generate", "hi", "--json"}), kExitOk);
  const auto lines = JsonLines();
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0]["started"]["request_id"], "r-1");
  EXPECT_EQ(lines[1]["delta"]["text"], "Hel");
  EXPECT_EQ(lines[4]["finished"]["reason"], "FINISH_REASON_EOG");
}

TEST_F(CommandsTest, GenerateWithToolsReadsTheFile) {
  const std::string path = ::testing::TempDir() + "/orcdctl_tools.json";
  std::ofstream(path) << R"([{"type":"function","function":{"name":"f"}}])";
  EXPECT_EQ(Run({"generate", "hi", "--tools", path}), kExitOk);
  EXPECT_THAT(worker_.generates.at(0).chat().tools_json(),
              ElementsAre(R"({"type":"function","function":{"name":"f"}})"));
  std::remove(path.c_str());
  EXPECT_EQ(Run({"generate", "hi", "--tools", path}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr(path + ": No such file"));
}

TEST_F(CommandsTest, GenerateSendsWhatTheTemplateTakes) {
  const std::string documents = ::testing::TempDir() + "/orcdctl_documents.json";
  const std::string source = ::testing::TempDir() + "/orcdctl_template.jinja";
  std::ofstream(documents) << R"({"title":"T","text":"x"})";
  std::ofstream(source) << "{{ messages }}";
  EXPECT_EQ(
      Run({"generate", "hi", "--documents", documents, "--template", source, "--template-args",
           R"({"enable_thinking":false})", "--continue", "Sure:", "--show-special"}),
      kExitOk);
  const v1::GenerateRequest& request = worker_.generates.at(0);
  EXPECT_TRUE(request.show_special_tokens());
  const v1::ChatPrompt& chat = request.chat();
  EXPECT_THAT(chat.documents_json(), ElementsAre(R"({"title":"T","text":"x"})"));
  EXPECT_EQ(chat.chat_template(), "{{ messages }}");
  EXPECT_EQ(chat.template_arguments_json(), R"({"enable_thinking":false})");
  EXPECT_TRUE(chat.continue_final_message());
  ASSERT_EQ(chat.messages_size(), 2);
  EXPECT_EQ(chat.messages(0).content(), "hi");
  EXPECT_EQ(chat.messages(1).role(), v1::CHAT_ROLE_ASSISTANT);
  EXPECT_EQ(chat.messages(1).content(), "Sure:");

  EXPECT_EQ(Run({"generate", "hi"}), kExitOk);
  EXPECT_FALSE(worker_.generates.at(1).chat().continue_final_message());
  EXPECT_FALSE(worker_.generates.at(1).chat().has_add_generation_prompt());
  std::remove(documents.c_str());
  std::remove(source.c_str());
}

TEST_F(CommandsTest, TextThatIsNotUtf8IsAUsageError) {
  EXPECT_EQ(Run({"generate", "caf\xe9"}), kExitUsage);
  EXPECT_EQ(Run({"tokenize", "caf\xe9"}), kExitUsage);
  EXPECT_EQ(Run({"load", "caf\xe9"}), kExitUsage);
  EXPECT_EQ(Run({"unload", "--model-id", "caf\xe9"}), kExitUsage);
  EXPECT_EQ(Run({"cancel", "caf\xe9"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("not UTF-8"));
  EXPECT_TRUE(worker_.generates.empty());
}

TEST_F(CommandsTest, AStreamWithoutItsEndIsAFailure) {
  worker_.forgets_finished = true;
  EXPECT_EQ(Run({"generate", "hi"}), kExitFailed);
  EXPECT_EQ(out_.str(), "Hello\x1b[31m!");
}

TEST_F(CommandsTest, AnInterruptCancelsTheCall) {
  worker_.hangs = true;
  std::thread by_hand([&] {
    EXPECT_TRUE(worker_.WaitForGenerates(1));
    interrupt_.Trigger();
  });
  EXPECT_EQ(Run({"generate", "hi"}), kExitInterrupted);
  by_hand.join();
  EXPECT_EQ(err_.str(), "cancelled\n");
  EXPECT_EQ(idle_interrupts_, 0);
  interrupt_.Trigger();
  EXPECT_EQ(idle_interrupts_, 1);
}

TEST_F(CommandsTest, ATimeoutEndsTheCall) {
  worker_.hangs = true;
  EXPECT_EQ(Run({"--timeout", "100ms", "load", "tiny.gguf"}), kExitFailed);
  EXPECT_THAT(err_.str(), StartsWith("DEADLINE_EXCEEDED: "));
  EXPECT_THAT(err_.str(), Not(HasSubstr("does a worker listen")));
}

TEST_F(CommandsTest, ChatSendsTheWholeConversation) {
  worker_.deltas = {"An", "swer"};
  in_.str("one\n\ntwo\n");
  EXPECT_EQ(Run({"generate", "--interactive", "--system", "s", "zero"}), kExitOk);
  ASSERT_EQ(worker_.generates.size(), 3u);
  std::vector<std::string> last;
  for (const auto& message : worker_.generates[2].chat().messages()) {
    last.push_back(message.content());
  }
  EXPECT_THAT(last, ElementsAre("s", "zero", "Answer", "one", "Answer", "two"));
  EXPECT_EQ(worker_.generates[2].chat().messages(2).role(), v1::CHAT_ROLE_ASSISTANT);
  EXPECT_EQ(out_.str(), "Answer\nAnswer\nAnswer\n");
  EXPECT_EQ(err_.str(), "") << "no prompts on a pipe";
}

TEST_F(CommandsTest, ChatGoesOnAfterAnInterruptWithWhatWasSaid) {
  worker_.deltas = {"part"};
  worker_.hangs = true;
  in_.str("one\ntwo\n");
  std::thread by_hand([&] {
    for (size_t n = 1; n <= 2; ++n) {
      EXPECT_TRUE(worker_.WaitForGenerates(n));
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      interrupt_.Trigger();
    }
  });
  EXPECT_EQ(Run({"generate", "--interactive"}), kExitOk);
  by_hand.join();
  ASSERT_EQ(worker_.generates.size(), 2u);
  const auto& chat = worker_.generates[1].chat();
  ASSERT_EQ(chat.messages_size(), 3);
  EXPECT_EQ(chat.messages(1).content(), "part");
  EXPECT_EQ(err_.str(), "cancelled\ncancelled\n");
}

TEST_F(CommandsTest, ChatTakesBackAMessageThatFailed) {
  google::rpc::Status rpc;
  rpc.add_details()->PackFrom(google::rpc::ErrorInfo());
  worker_.status =
      grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full", rpc.SerializeAsString());
  in_.str("one\ntwo\n");
  EXPECT_EQ(Run({"generate", "--interactive"}), kExitFailed);
  ASSERT_EQ(worker_.generates.size(), 2u);
  ASSERT_EQ(worker_.generates[1].chat().messages_size(), 1);
  EXPECT_EQ(worker_.generates[1].chat().messages(0).content(), "two");

  server_->Shutdown();
  in_.clear();
  in_.str("three\nfour\n");
  EXPECT_EQ(Run({"generate", "--interactive"}), kExitUnreachable);
}

TEST_F(CommandsTest, ChatPromptsOnATerminal) {
  console_.in_is_terminal = console_.out_is_terminal = console_.err_is_terminal = true;
  in_.str("one\n");
  EXPECT_EQ(Run({"generate", "-i"}), kExitOk);
  EXPECT_EQ(err_.str(), "> > \n");
  EXPECT_EQ(out_.str(), "Hello[31m!\n");
  // The chat's handling of Ctrl-C ended with the chat.
  interrupt_.Trigger();
  EXPECT_EQ(idle_interrupts_, 1);
}

}  // namespace
}  // namespace orcd::ctl
