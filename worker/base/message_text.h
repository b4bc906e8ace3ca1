// Checks and repairs text in messages. proto3 clients cannot decode a message with a string that is
// not UTF-8, but protobuf's C++ library writes such a message all the same.
#ifndef ORCD_WORKER_BASE_MESSAGE_TEXT_H_
#define ORCD_WORKER_BASE_MESSAGE_TEXT_H_

#include <google/protobuf/message.h>

#include <string>

namespace orcd {

// Returns the path of the first string field, at any depth, that is not UTF-8, such as
// `status.model.name`; empty if there is none. Fields of type bytes do not count, so the inside of
// an Any does not.
std::string FindInvalidText(const google::protobuf::Message& message);

// Replaces bytes that are not UTF-8 in string fields, at any depth, like ReplaceInvalidUtf8.
void MakeTextValid(google::protobuf::Message& message);

}  // namespace orcd

#endif  // ORCD_WORKER_BASE_MESSAGE_TEXT_H_
