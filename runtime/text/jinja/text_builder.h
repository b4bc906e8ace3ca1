// Builds texts whose bytes know who wrote them.
#ifndef ORCD_RUNTIME_TEXT_JINJA_TEXT_BUILDER_H_
#define ORCD_RUNTIME_TEXT_JINJA_TEXT_BUILDER_H_

#include <cstddef>
#include <string_view>

#include "runtime/text/jinja/arena.h"
#include "runtime/text/jinja/value.h"

namespace orcd::jinja {

// Appends; what was built before stays valid and unchanged, in the arena. What does not fit into
// the arena is left out.
class TextBuilder {
 public:
  explicit TextBuilder(Arena& arena) : arena_(&arena) {}

  void Reserve(size_t bytes);
  void Append(std::string_view bytes, Origin origin = Origin::kUser);
  void Append(const Text& text);
  // Appends `text` escaped for HTML unless it is Markup.
  void AppendEscaped(const Text& text);

  size_t size() const { return size_; }
  Text text() const { return {{data_, size_}, origins_, origin_}; }

 private:
  bool MakeRoom(size_t bytes);
  // Gives every byte an origin of its own, so that others than `origin_` can follow.
  bool Split();

  Arena* arena_;
  char* data_ = nullptr;
  Origin* origins_ = nullptr;
  Origin origin_ = Origin::kUser;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace orcd::jinja

#endif  // ORCD_RUNTIME_TEXT_JINJA_TEXT_BUILDER_H_
