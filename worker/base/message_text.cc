#include "worker/base/message_text.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/utf8.h"

namespace orcd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

bool IsValid(const std::string& text) { return FindInvalidUtf8(text) == text.size(); }

std::vector<const FieldDescriptor*> FieldsOf(const Message& message) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  return fields;
}

}  // namespace

std::string FindInvalidText(const Message& message) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::string scratch;
  for (const FieldDescriptor* field : FieldsOf(message)) {
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    if (field->type() == FieldDescriptor::TYPE_STRING) {
      for (int i = 0; i < count; ++i) {
        const std::string& text =
            field->is_repeated()
                ? reflection.GetRepeatedStringReference(message, field, i, &scratch)
                : reflection.GetStringReference(message, field, &scratch);
        if (!IsValid(text)) return std::string(field->name());
      }
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      for (int i = 0; i < count; ++i) {
        const std::string inside =
            FindInvalidText(field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                                 : reflection.GetMessage(message, field));
        if (!inside.empty()) return absl::StrCat(std::string(field->name()), ".", inside);
      }
    }
  }
  return "";
}

void MakeTextValid(Message& message) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  for (const FieldDescriptor* field : FieldsOf(message)) {
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    if (field->type() == FieldDescriptor::TYPE_STRING) {
      for (int i = 0; i < count; ++i) {
        if (field->is_repeated()) {
          reflection.SetRepeatedString(
              &message, field, i,
              ReplaceInvalidUtf8(reflection.GetRepeatedString(message, field, i)));
        } else {
          reflection.SetString(&message, field,
                               ReplaceInvalidUtf8(reflection.GetString(message, field)));
        }
      }
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      for (int i = 0; i < count; ++i) {
        MakeTextValid(field->is_repeated() ? *reflection.MutableRepeatedMessage(&message, field, i)
                                           : *reflection.MutableMessage(&message, field));
      }
    }
  }
}

}  // namespace orcd
