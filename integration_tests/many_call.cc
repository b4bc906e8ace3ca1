#include "integration_tests/many_call.h"

#include "google/rpc/status.pb.h"

namespace orcd::testing {
namespace {

void Take(const v1::GenerateEvent& event, ManyGeneration& generation) {
  const auto violate = [&](const std::string& what) {
    if (generation.violation.empty()) generation.violation = what;
  };
  if (event.has_cancelled()) {
    generation.cancelled.push_back(event.cancelled().found());
    return;
  }
  if (generation.end) violate("an event after the end");
  if (event.has_started()) {
    if (generation.started) violate("started twice");
    generation.started = event.started();
  } else if (event.has_delta()) {
    const v1::GenerateDelta& delta = event.delta();
    if (!generation.started) violate("a delta before Started");
    std::vector<uint32_t>& ids = generation.ids[delta.sample()];
    ids.insert(ids.end(), delta.token_ids().begin(), delta.token_ids().end());
    generation.text[delta.sample()] += delta.text();
    std::vector<v1::TokenLogprobs>& logprobs = generation.logprobs[delta.sample()];
    logprobs.insert(logprobs.end(), delta.logprobs().begin(), delta.logprobs().end());
  } else if (event.has_end()) {
    if (event.end().has_finished() != generation.started.has_value()) {
      violate("Finished without Started, or the other way round");
    }
    generation.end = event.end();
  } else {
    violate("an empty event");
  }
}

}  // namespace

RpcError ManyGeneration::error() const {
  if (!end || !end->has_status()) return {};
  return DecodeError(grpc::Status(static_cast<grpc::StatusCode>(end->status().code()),
                                  end->status().message(), end->status().SerializeAsString()));
}

ManyCall::ManyCall(v1::Worker::Stub& stub) : stream_(stub.GenerateMany(&context_)) {}

ManyCall::~ManyCall() {
  if (done_) return;
  HangUp();
  Finish();
}

bool ManyCall::Generate(const v1::GenerateRequest& request, absl::Duration timeout) {
  v1::GenerateManyRequest message;
  *message.mutable_generate() = request;
  timeout = Bound(timeout);
  message.mutable_timeout()->set_seconds(absl::IDivDuration(timeout, absl::Seconds(1), &timeout));
  message.mutable_timeout()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(timeout)));
  return stream_->Write(message);
}

bool ManyCall::Cancel(const std::string& request_id) {
  v1::GenerateManyRequest message;
  message.mutable_cancel()->set_request_id(request_id);
  return stream_->Write(message);
}

bool ManyCall::Read() {
  v1::GenerateManyResponse response;
  if (done_ || !stream_->Read(&response)) return false;
  for (const v1::GenerateEvent& event : response.events()) Take(event, by_id_[event.request_id()]);
  return true;
}

bool ManyCall::ReadUntilEnd(const std::string& request_id) {
  while (!by_id_[request_id].end) {
    if (!Read()) return false;
  }
  return true;
}

RpcError ManyCall::Finish() {
  while (Read()) {
  }
  done_ = true;
  return DecodeError(stream_->Finish());
}

}  // namespace orcd::testing
