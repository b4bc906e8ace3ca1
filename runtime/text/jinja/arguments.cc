#include "runtime/text/jinja/arguments.h"

#include <algorithm>
#include <string>

#include "runtime/base/error.h"
#include "runtime/text/jinja/runtime.h"

namespace orcd::jinja {

size_t Parameters::size() const {
  return std::ranges::find_if(names, &std::string_view::empty) - names.begin();
}

absl::StatusOr<Bound> Bind(Runtime& runtime, std::string_view function,
                           const Parameters& parameters, const Arguments& arguments) {
  const auto fail = [&](std::string_view why) {
    return runtime.Fail(std::string(function).append("() ").append(why));
  };
  const size_t size = parameters.size();
  if (arguments.positional.size() > size) {
    return fail("takes at most " + std::to_string(size) + " arguments, " +
                std::to_string(arguments.positional.size()) + " were given");
  }
  Bound bound;
  for (size_t i = 0; i < arguments.positional.size(); ++i) bound.Set(i, arguments.positional[i]);
  for (const Keyword& keyword : arguments.keywords) {
    const size_t i = std::ranges::find(parameters.names, keyword.name) - parameters.names.begin();
    if (i >= size || bound.Has(i)) {
      return fail(std::string(i >= size ? "has no parameter '" : "got two values for '")
                      .append(keyword.name)
                      .append("'"));
    }
    bound.Set(i, keyword.value);
  }
  for (size_t i = 0; i < parameters.needed; ++i) {
    if (!bound.Has(i)) {
      return fail(std::string("needs its argument '").append(parameters.names[i]).append("'"));
    }
  }
  return bound;
}

}  // namespace orcd::jinja
