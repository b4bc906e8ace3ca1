// Checks JSON from outside before anything builds a document from it.
#ifndef ORCD_RUNTIME_BASE_JSON_SHAPE_H_
#define ORCD_RUNTIME_BASE_JSON_SHAPE_H_

#include <optional>
#include <string>

namespace orcd {

struct JsonShape {
  // True if the text is JSON as far as it was read: to the first problem below, or else to its end.
  bool is_json = false;
  bool too_deep = false;
  // A name that occurs twice in one object; a document would keep only one of the two.
  std::optional<std::string> twice = std::nullopt;
};

// Accepts at most `max_depth` nested objects and lists. Takes time proportional to the text. The
// library's parser does not if it is given a callback: it then walks a whole list at the end of
// each object in it.
JsonShape ScanJson(const std::string& text, int max_depth);

}  // namespace orcd

#endif  // ORCD_RUNTIME_BASE_JSON_SHAPE_H_
