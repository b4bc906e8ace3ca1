#include "worker/api/reflection.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"

namespace orcd {
namespace {

namespace reflection = grpc::reflection;
using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;

// Far more than any name has; every answer repeats its request.
constexpr size_t kMaxRequestBytes = 4 << 10;

// Adds `file` and all files that it imports, each once.
template <typename FileResponse>
void AddFile(const FileDescriptor* file, std::set<const FileDescriptor*>& added,
             FileResponse* response) {
  if (!added.insert(file).second) return;
  google::protobuf::FileDescriptorProto proto;
  file->CopyTo(&proto);
  proto.SerializeToString(response->add_file_descriptor_proto());
  for (int i = 0; i < file->dependency_count(); ++i) {
    AddFile(file->dependency(i), added, response);
  }
}

template <typename Response>
void Fail(grpc::StatusCode code, std::string message, Response* response) {
  response->mutable_error_response()->set_error_code(code);
  response->mutable_error_response()->set_error_message(std::move(message));
}

// `file` is null if `wanted` does not exist.
template <typename Response>
void AnswerFile(const FileDescriptor* file, const std::string& wanted, Response* response) {
  if (file == nullptr) {
    Fail(grpc::StatusCode::NOT_FOUND, absl::StrCat("there is no ", wanted), response);
    return;
  }
  std::set<const FileDescriptor*> added;
  AddFile(file, added, response->mutable_file_descriptor_response());
}

template <typename Response>
void AnswerExtensionNumbers(const DescriptorPool& pool, const std::string& type,
                            Response* response) {
  const Descriptor* const message = pool.FindMessageTypeByName(type);
  if (message == nullptr) {
    Fail(grpc::StatusCode::NOT_FOUND, absl::StrCat("there is no message ", type), response);
    return;
  }
  std::vector<const FieldDescriptor*> extensions;
  pool.FindAllExtensions(message, &extensions);
  auto* const numbers = response->mutable_all_extension_numbers_response();
  numbers->set_base_type_name(type);
  for (const FieldDescriptor* extension : extensions) {
    numbers->add_extension_number(extension->number());
  }
}

template <typename Request, typename Response>
void Answer(const std::vector<std::string>& service_names, const Request& request,
            Response* response) {
  response->Clear();
  if (request.ByteSizeLong() > kMaxRequestBytes) {
    Fail(grpc::StatusCode::INVALID_ARGUMENT,
         absl::StrCat("the request has more than ", kMaxRequestBytes, " bytes; name one thing"),
         response);
    return;
  }
  response->set_valid_host(request.host());
  *response->mutable_original_request() = request;
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  switch (request.message_request_case()) {
    case Request::kFileByFilename:
      AnswerFile(pool.FindFileByName(request.file_by_filename()),
                 absl::StrCat("file ", request.file_by_filename()), response);
      return;
    case Request::kFileContainingSymbol:
      AnswerFile(pool.FindFileContainingSymbol(request.file_containing_symbol()),
                 absl::StrCat("symbol ", request.file_containing_symbol()), response);
      return;
    case Request::kFileContainingExtension: {
      const std::string& type = request.file_containing_extension().containing_type();
      const int number = request.file_containing_extension().extension_number();
      const Descriptor* const message = pool.FindMessageTypeByName(type);
      const FieldDescriptor* const extension =
          message == nullptr ? nullptr : pool.FindExtensionByNumber(message, number);
      AnswerFile(extension == nullptr ? nullptr : extension->file(),
                 absl::StrCat("extension ", number, " of ", type), response);
      return;
    }
    case Request::kAllExtensionNumbersOfType:
      AnswerExtensionNumbers(pool, request.all_extension_numbers_of_type(), response);
      return;
    case Request::kListServices:
      for (const std::string& name : service_names) {
        response->mutable_list_services_response()->add_service()->set_name(name);
      }
      return;
    case Request::MESSAGE_REQUEST_NOT_SET:
      break;
  }
  Fail(grpc::StatusCode::INVALID_ARGUMENT, "the request asks for nothing that is known here",
       response);
}

// One call: reads a request, writes its answer, and so on, with at most one of each in memory.
// Deletes itself when gRPC is done with it.
template <typename Request, typename Response>
class Call final : public grpc::ServerBidiReactor<Request, Response> {
 public:
  explicit Call(const std::vector<std::string>& service_names) : service_names_(service_names) {
    this->StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      this->Finish(grpc::Status::OK);
      return;
    }
    Answer(service_names_, request_, &response_);
    this->StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    if (ok) {
      this->StartRead(&request_);
    } else {
      this->Finish(grpc::Status::OK);
    }
  }
  void OnDone() override { delete this; }

 private:
  const std::vector<std::string>& service_names_;
  Request request_;
  Response response_;
};

std::vector<std::string> WithReflectionServices(std::vector<std::string> names) {
  names.emplace_back(reflection::v1::ServerReflection::service_full_name());
  names.emplace_back(reflection::v1alpha::ServerReflection::service_full_name());
  return names;
}

}  // namespace

class Reflection::V1 final : public reflection::v1::ServerReflection::CallbackService {
 public:
  explicit V1(const std::vector<std::string>& names) : names_(names) {}
  grpc::ServerBidiReactor<reflection::v1::ServerReflectionRequest,
                          reflection::v1::ServerReflectionResponse>*
  ServerReflectionInfo(grpc::CallbackServerContext*) override {
    return new Call<reflection::v1::ServerReflectionRequest,
                    reflection::v1::ServerReflectionResponse>(names_);
  }

 private:
  const std::vector<std::string>& names_;
};

class Reflection::V1Alpha final : public reflection::v1alpha::ServerReflection::CallbackService {
 public:
  explicit V1Alpha(const std::vector<std::string>& names) : names_(names) {}
  grpc::ServerBidiReactor<reflection::v1alpha::ServerReflectionRequest,
                          reflection::v1alpha::ServerReflectionResponse>*
  ServerReflectionInfo(grpc::CallbackServerContext*) override {
    return new Call<reflection::v1alpha::ServerReflectionRequest,
                    reflection::v1alpha::ServerReflectionResponse>(names_);
  }

 private:
  const std::vector<std::string>& names_;
};

Reflection::Reflection(std::vector<std::string> service_names)
    : service_names_(WithReflectionServices(std::move(service_names))),
      v1_(std::make_unique<V1>(service_names_)),
      v1alpha_(std::make_unique<V1Alpha>(service_names_)) {}

Reflection::~Reflection() = default;

std::array<grpc::Service*, 2> Reflection::services() const { return {v1_.get(), v1alpha_.get()}; }

}  // namespace orcd
