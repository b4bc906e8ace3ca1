// A look at JSON from outside before a document is made of it.
#ifndef ORCD_WORKER_JSON_SHAPE_H_
#define ORCD_WORKER_JSON_SHAPE_H_

#include <optional>
#include <string>

namespace orcd {

struct JsonShape {
  // It is JSON as far as it was read: to where one of the following was found, or else to its end.
  bool is_json = false;
  bool too_deep = false;
  // A name that comes twice in an object; a document would keep one of the two.
  std::optional<std::string> twice = std::nullopt;
};

// `max_depth` objects and lists may stand in each other. Takes time in proportion to the text,
// which the library's parser does not where it is given a callback: it then goes through the whole
// list at the end of each object in it.
JsonShape LookAtJson(const std::string& text, int max_depth);

}  // namespace orcd

#endif  // ORCD_WORKER_JSON_SHAPE_H_
