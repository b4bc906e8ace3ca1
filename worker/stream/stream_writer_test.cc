#include "worker/stream/stream_writer.h"

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

using ::testing::ElementsAre;

grpc::ByteBuffer Message(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

// Notes the operations of a call, none of which ends by itself.
class FakePort final : public StreamWriter::Port {
 public:
  void Write(const grpc::ByteBuffer* message) override { Record("write", *message); }
  void WriteLast(grpc::ByteBuffer* message, const grpc::Status& status) override {
    Record("last", *message);
    EXPECT_TRUE(status.ok());
  }
  void End(const grpc::Status& status) override { operations.push_back(status.error_message()); }

  std::vector<std::string> operations;

 private:
  void Record(const std::string& operation, grpc::ByteBuffer message) {
    grpc::Slice slice;
    EXPECT_TRUE(message.TrySingleSlice(&slice).ok());
    operations.push_back(operation + " " + std::string(slice.begin(), slice.end()));
  }
};

// Answers Next from a list.
class FakeWriter final : public StreamWriter {
 public:
  explicit FakeWriter(FakePort* port) : StreamWriter(&context_, nullptr) { set_port(port); }

  using StreamWriter::Advance;
  using StreamWriter::is_unread;

  std::deque<Output> due;
  std::function<void()> during_next = [] {};
  int gone = 0;

 private:
  Output Next() override {
    Output output;
    if (!due.empty()) {
      output = std::move(due.front());
      due.pop_front();
    }
    std::exchange(during_next, [] {})();
    return output;
  }
  void OnClientGone() override { ++gone; }

  grpc::CallbackServerContext context_;
};

class StreamWriterTest : public ::testing::Test {
 protected:
  FakePort port_;
  const std::shared_ptr<FakeWriter> writer_ = std::make_shared<FakeWriter>(&port_);
};

TEST_F(StreamWriterTest, WritesOneMessageAtATimeAndTheLastWithTheEnd) {
  writer_->due = {{.messages = {Message("a"), Message("b")}},
                  {.messages = {Message("c"), Message("d")}, .end = grpc::Status::OK}};
  writer_->Advance();
  writer_->Advance();
  EXPECT_THAT(port_.operations, ElementsAre("write a"));
  EXPECT_TRUE(writer_->is_unread());
  for (int i = 0; i < 3; ++i) writer_->OnWriteDone(true);
  EXPECT_THAT(port_.operations, ElementsAre("write a", "write b", "write c", "last d"));
  writer_->OnDone();
}

TEST_F(StreamWriterTest, AsksAgainForWhatBecomesDueMeanwhile) {
  writer_->during_next = [this] {
    writer_->due.push_back({.messages = {Message("late")}});
    writer_->Advance();
  };
  writer_->Advance();
  EXPECT_THAT(port_.operations, ElementsAre("write late"));
  writer_->OnWriteDone(true);
  EXPECT_FALSE(writer_->is_unread());
  // The right is free again.
  writer_->due.push_back({.messages = {Message("next")}});
  writer_->Advance();
  EXPECT_THAT(port_.operations, ElementsAre("write late", "write next"));
}

TEST_F(StreamWriterTest, DropsMessagesOfAClientThatHasGone) {
  writer_->due = {{.messages = {Message("a"), Message("b")}},
                  {.messages = {Message("c")}},
                  {.end = grpc::Status(grpc::StatusCode::CANCELLED, "gone")}};
  writer_->Advance();
  writer_->OnWriteDone(false);
  EXPECT_THAT(port_.operations, ElementsAre("write a", "gone"));
  writer_->OnCancel();
  EXPECT_EQ(writer_->gone, 1);
  EXPECT_EQ(port_.operations.size(), 2u);
}

}  // namespace
}  // namespace orcd
