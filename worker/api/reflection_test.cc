#include "worker/api/reflection.h"

#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct V1 {
  using Service = grpc::reflection::v1::ServerReflection;
  using Request = grpc::reflection::v1::ServerReflectionRequest;
  using Response = grpc::reflection::v1::ServerReflectionResponse;
};
struct V1Alpha {
  using Service = grpc::reflection::v1alpha::ServerReflection;
  using Request = grpc::reflection::v1alpha::ServerReflectionRequest;
  using Response = grpc::reflection::v1alpha::ServerReflectionResponse;
};

template <typename Wire>
class ReflectionTest : public ::testing::Test {
 protected:
  using Request = typename Wire::Request;
  using Response = typename Wire::Response;

  ReflectionTest() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    for (grpc::Service* service : reflection_.services()) builder.RegisterService(service);
    server_ = builder.BuildAndStart();
    stub_ = Wire::Service::NewStub(
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
  }

  // Returns the answers to `requests`, all on one call, and expects the call to succeed.
  std::vector<Response> Ask(const std::vector<Request>& requests) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    auto call = stub_->ServerReflectionInfo(&context);
    std::vector<Response> responses;
    for (const Request& request : requests) {
      EXPECT_TRUE(call->Write(request));
      Response response;
      if (call->Read(&response)) responses.push_back(response);
    }
    call->WritesDone();
    EXPECT_TRUE(call->Finish().ok());
    EXPECT_EQ(responses.size(), requests.size());
    responses.resize(requests.size());
    return responses;
  }
  template <typename Set>
  Response AskOne(const Set& set) {
    Request request;
    set(request);
    return Ask({request}).front();
  }
  static std::vector<std::string> FileNames(const Response& response) {
    std::vector<std::string> names;
    for (const std::string& bytes : response.file_descriptor_response().file_descriptor_proto()) {
      google::protobuf::FileDescriptorProto file;
      EXPECT_TRUE(file.ParseFromString(bytes));
      names.push_back(file.name());
    }
    return names;
  }

  Reflection reflection_{{"orcd.v1.Worker"}};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<typename Wire::Service::Stub> stub_;
};

using Wires = ::testing::Types<V1, V1Alpha>;
TYPED_TEST_SUITE(ReflectionTest, Wires);

TYPED_TEST(ReflectionTest, ListsTheServicesAndItself) {
  const auto response = this->AskOne([](auto& request) {
    request.set_host("worker");
    request.set_list_services("*");
  });
  std::vector<std::string> names;
  for (const auto& service : response.list_services_response().service()) {
    names.push_back(service.name());
  }
  EXPECT_THAT(names, ElementsAre("orcd.v1.Worker", "grpc.reflection.v1.ServerReflection",
                                 "grpc.reflection.v1alpha.ServerReflection"));
  EXPECT_EQ(response.valid_host(), "worker");
  EXPECT_EQ(response.original_request().list_services(), "*");
}

TYPED_TEST(ReflectionTest, FilesComeWithAllThatTheyImport) {
  for (const char* symbol : {"orcd.v1.Worker", "orcd.v1.Worker.Generate", "orcd.v1.GenerateRequest",
                             "orcd.v1.GenerateRequest.request_id"}) {
    const auto names = this->FileNames(
        this->AskOne([&](auto& request) { request.set_file_containing_symbol(symbol); }));
    ASSERT_FALSE(names.empty()) << symbol;
    EXPECT_EQ(names.front(), "orcd/v1/worker.proto");
    EXPECT_THAT(names, Contains("google/protobuf/duration.proto").Times(1));
  }
  const auto names = this->FileNames(
      this->AskOne([](auto& request) { request.set_file_by_filename("orcd/v1/worker.proto"); }));
  EXPECT_THAT(names, Contains("orcd/v1/worker.proto").Times(1));
}

TYPED_TEST(ReflectionTest, ExtensionsAreThoseOfTheMessage) {
  // No extension is linked, but the extended message is.
  const auto numbers = this->AskOne([](auto& request) {
    request.set_all_extension_numbers_of_type("google.protobuf.MethodOptions");
  });
  EXPECT_EQ(numbers.all_extension_numbers_response().base_type_name(),
            "google.protobuf.MethodOptions");
  const auto file = this->AskOne([](auto& request) {
    request.mutable_file_containing_extension()->set_containing_type(
        "google.protobuf.MethodOptions");
    request.mutable_file_containing_extension()->set_extension_number(99999);
  });
  EXPECT_EQ(file.error_response().error_code(), grpc::StatusCode::NOT_FOUND);
}

TYPED_TEST(ReflectionTest, AnErrorIsAnAnswerAndTheCallGoesOn) {
  using Request = typename TypeParam::Request;
  Request symbol, file, type, nothing, much, good;
  symbol.set_file_containing_symbol("no.such.Thing");
  file.set_file_by_filename("no/such.proto");
  type.set_all_extension_numbers_of_type("no.such.Message");
  much.set_file_containing_symbol(std::string(1 << 20, 'x'));
  good.set_list_services("");
  const auto answers = this->Ask({symbol, file, type, nothing, much, good});
  EXPECT_EQ(answers[0].error_response().error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(answers[0].error_response().error_message(), HasSubstr("no.such.Thing"));
  EXPECT_EQ(answers[1].error_response().error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(answers[2].error_response().error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(answers[3].error_response().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(answers[4].error_response().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_LT(answers[4].ByteSizeLong(), 200u) << "what is too long does not come back";
  EXPECT_EQ(answers[5].list_services_response().service_size(), 3);
}

TYPED_TEST(ReflectionTest, OneWhoHangsUpLeavesTheOthers) {
  for (int i = 0; i < 20; ++i) {
    grpc::ClientContext context;
    auto call = this->stub_->ServerReflectionInfo(&context);
    typename TypeParam::Request request;
    request.set_file_by_filename("orcd/v1/worker.proto");
    call->Write(request);
    context.TryCancel();
    EXPECT_EQ(call->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(this->AskOne([](auto& request) { request.set_list_services(""); })
                  .has_list_services_response());
}

}  // namespace
}  // namespace orcd
