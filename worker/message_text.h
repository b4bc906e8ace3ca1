// The text in messages: proto3 clients cannot decode a message with a string that is not UTF-8, and
// protobuf's C++ library writes such a message all the same.
#ifndef ORCD_WORKER_MESSAGE_TEXT_H_
#define ORCD_WORKER_MESSAGE_TEXT_H_

#include <google/protobuf/message.h>

#include <string>

namespace orcd {

// The path of the first string field, at any depth, that is not UTF-8, such as `status.model.name`;
// empty where there is none. Fields of type bytes do not count, so the inside of an Any does not.
std::string FindInvalidText(const google::protobuf::Message& message);

// Replaces what is not UTF-8 in the string fields, at any depth, as ReplaceInvalidUtf8 does.
void MakeTextValid(google::protobuf::Message& message);

}  // namespace orcd

#endif  // ORCD_WORKER_MESSAGE_TEXT_H_
