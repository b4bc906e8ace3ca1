// Finds calls that the engine thread writes to. One gRPC write takes the engine thread as long as a
// good part of a step.
#ifndef ORCD_WORKER_STREAM_ENGINE_WRITES_FOR_TEST_H_
#define ORCD_WORKER_STREAM_ENGINE_WRITES_FOR_TEST_H_

#include <google/protobuf/descriptor.h>
#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_interceptor.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "google/protobuf/message.h"
#include "gtest/gtest.h"
#include "runtime/engine/engine_thread.h"
#include "testing/event.h"
#include "worker/base/messages.h"
#include "worker/server.h"

namespace orcd {

// Watches the servers that StartServer starts. Each message and status that is sent passes an
// interceptor, on the thread that sends it. Other servers of the process have none, because it
// costs time and needs a suppression in cmake/tsan.supp.
class EngineWrites {
 public:
  // Starts a server of `services` on a port of its own choice.
  static std::unique_ptr<Server> StartServer(const std::vector<grpc::Service*>& services) {
    static const bool has_factory = [] {
      grpc::ServerBuilder::InternalAddPluginFactory(
          [] { return std::unique_ptr<grpc::ServerBuilderPlugin>(new Plugin); });
      return true;
    }();
    (void)has_factory;
    Get().is_starting_ = true;
    auto server = Server::Start({.listen = "127.0.0.1:0"}, services);
    Get().is_starting_ = false;
    EXPECT_TRUE(server.ok()) << server.status();
    return *std::move(server);
  }

  // TakeByEngine returns the methods (`/package.Service/Method`) that the engine thread wrote to
  // since the last call; TakeAll returns those that any thread wrote to.
  static std::set<std::string> TakeByEngine() { return Take(Get().by_engine_); }
  static std::set<std::string> TakeAll() { return Take(Get().all_); }

 private:
  class Interceptor final : public grpc::experimental::Interceptor {
   public:
    explicit Interceptor(std::string method) : method_(std::move(method)) {}
    void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
      using Point = grpc::experimental::InterceptionHookPoints;
      for (const Point point :
           {Point::PRE_SEND_INITIAL_METADATA, Point::PRE_SEND_MESSAGE, Point::PRE_SEND_STATUS}) {
        if (methods->QueryInterceptionHookPoint(point)) Record();
      }
      methods->Proceed();
    }

   private:
    void Record() {
      EngineWrites& writes = Get();
      std::lock_guard lock(writes.mutex_);
      writes.all_.insert(method_);
      if (OnEngineThread()) writes.by_engine_.insert(method_);
    }
    const std::string method_;
  };
  class Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
   public:
    grpc::experimental::Interceptor* CreateServerInterceptor(
        grpc::experimental::ServerRpcInfo* info) override {
      return new Interceptor(info->method());
    }
  };
  class Plugin final : public grpc::ServerBuilderPlugin {
   public:
    std::string name() override { return "engine_writes"; }
    void UpdateServerBuilder(grpc::ServerBuilder* builder) override {
      if (!Get().is_starting_) return;
      std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> factories;
      factories.push_back(std::make_unique<Factory>());
      builder->experimental().SetInterceptorCreators(std::move(factories));
    }
    void InitServer(grpc::ServerInitializer*) override {}
    void Finish(grpc::ServerInitializer*) override {}
    void ChangeArguments(const std::string&, void*) override {}
  };

  static EngineWrites& Get() {
    static EngineWrites writes;
    return writes;
  }
  static std::set<std::string> Take(std::set<std::string>& methods) {
    std::lock_guard lock(Get().mutex_);
    return std::exchange(methods, {});
  }

  std::atomic<bool> is_starting_ = false;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::set<std::string> by_engine_;
  std::set<std::string> all_;
};

// A call of any kind, which sends one message and reads until the end.
class AnyCall final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  AnyCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
          const google::protobuf::Message& request)
      : stub_(channel), request_(SerializeMessage(request)) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    stub_.PrepareBidiStreamingCall(&context_, method, {}, this);
    StartWriteLast(&request_, grpc::WriteOptions());
    StartRead(&response_);
    StartCall();
  }

  // Returns the status. With `hang_up`, cancels the call once a message has come, for calls that
  // never end by themselves.
  grpc::Status Finish(bool hang_up) {
    if (hang_up) {
      EXPECT_TRUE(message_.WaitFor(absl::Seconds(60)));
      context_.TryCancel();
    }
    EXPECT_TRUE(done_.WaitFor(absl::Seconds(90)));
    return status_;
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    message_.Notify();
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    status_ = status;
    message_.Notify();
    done_.Notify();
  }

 private:
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  const grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
  grpc::Status status_;
  Event message_;
  Event done_;
};

// One call for ExpectNoEngineWrites.
struct CallForTest {
  std::string method;
  std::shared_ptr<const google::protobuf::Message> request;
  bool hang_up = false;
};

// Makes the calls one after the other and expects that the engine thread writes to none of them.
// `calls` must include at least one call of each method of the service, so a new method must be
// added to it.
inline void ExpectNoEngineWrites(const std::shared_ptr<grpc::Channel>& channel,
                                 const google::protobuf::ServiceDescriptor& service,
                                 const std::vector<CallForTest>& calls) {
  EngineWrites::TakeAll();
  EngineWrites::TakeByEngine();
  for (const CallForTest& call : calls) {
    const std::string method = absl::StrCat("/", service.full_name(), "/", call.method);
    const grpc::Status status = AnyCall(channel, method, *call.request).Finish(call.hang_up);
    EXPECT_TRUE(status.ok() || call.hang_up) << method << ": " << status.error_message();
  }
  const std::set<std::string> all = EngineWrites::TakeAll();
  for (int i = 0; i < service.method_count(); ++i) {
    const std::string method =
        absl::StrCat("/", service.full_name(), "/", service.method(i)->name());
    EXPECT_TRUE(all.contains(method)) << "nobody calls " << method << " here";
  }
  for (const std::string& method : EngineWrites::TakeByEngine()) {
    ADD_FAILURE() << "the engine's thread writes to calls of " << method;
  }
}

}  // namespace orcd

#endif  // ORCD_WORKER_STREAM_ENGINE_WRITES_FOR_TEST_H_
