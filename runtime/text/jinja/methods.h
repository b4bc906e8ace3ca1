// Methods of strings, lists and dictionaries, and the global functions.
#ifndef ORCD_RUNTIME_TEXT_JINJA_METHODS_H_
#define ORCD_RUNTIME_TEXT_JINJA_METHODS_H_

#include <optional>
#include <span>
#include <string_view>

#include "runtime/text/jinja/runtime.h"
#include "runtime/text/jinja/value.h"

namespace orcd::jinja {

// The method of a value. For one that would modify the value, an undefined value that says so;
// nullopt if there is none.
std::optional<Value> FindMethod(Runtime& runtime, const Value& object, std::string_view name);

std::span<const Function> StringMethods();
std::span<const Function> GlobalFunctions();

}  // namespace orcd::jinja

#endif  // ORCD_RUNTIME_TEXT_JINJA_METHODS_H_
