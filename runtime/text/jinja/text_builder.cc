#include "runtime/text/jinja/text_builder.h"

#include <algorithm>

namespace orcd::jinja {

void TextBuilder::Reserve(size_t bytes) {
  if (bytes <= capacity_) return;
  char* const data = arena_->NewArray<char>(bytes);
  if (data == nullptr) return;
  if (origins_ != nullptr) {
    Origin* const origins = arena_->NewArray<Origin>(bytes);
    if (origins == nullptr) return;
    std::copy_n(origins_, size_, origins);
    origins_ = origins;
  }
  std::copy_n(data_, size_, data);
  data_ = data;
  capacity_ = bytes;
}

bool TextBuilder::MakeRoom(size_t bytes) {
  if (bytes > capacity_ - size_) Reserve(std::max({size_ + bytes, capacity_ * 2, size_t{32}}));
  return bytes <= capacity_ - size_;
}

bool TextBuilder::Split() {
  if (origins_ != nullptr) return true;
  origins_ = arena_->NewArray<Origin>(capacity_);
  if (origins_ == nullptr) return false;
  std::fill_n(origins_, size_, origin_);
  return true;
}

void TextBuilder::Append(std::string_view bytes, Origin origin) {
  Append(Text{bytes, nullptr, origin});
}

void TextBuilder::Append(const Text& text) {
  const size_t bytes = text.bytes.size();
  if (bytes == 0 || !MakeRoom(bytes)) return;
  if (size_ == 0 && origins_ == nullptr) origin_ = text.OriginAt(0);
  if ((text.origins != nullptr || text.origin != origin_) && !Split()) return;
  if (origins_ != nullptr) {
    if (text.origins != nullptr) {
      std::copy_n(text.origins, bytes, origins_ + size_);
    } else {
      std::fill_n(origins_ + size_, bytes, text.origin);
    }
  }
  std::copy_n(text.bytes.data(), bytes, data_ + size_);
  size_ += bytes;
}

void TextBuilder::AppendEscaped(const Text& text) {
  if (text.markup) return Append(text);
  size_t begin = 0;
  for (size_t i = 0; i < text.bytes.size(); ++i) {
    std::string_view escaped;
    switch (text.bytes[i]) {
      case '&':
        escaped = "&amp;";
        break;
      case '<':
        escaped = "&lt;";
        break;
      case '>':
        escaped = "&gt;";
        break;
      case '\'':
        escaped = "&#39;";
        break;
      case '"':
        escaped = "&#34;";
        break;
      default:
        continue;
    }
    Append(text.Sub(begin, i - begin));
    Append(escaped, text.OriginAt(i));
    begin = i + 1;
  }
  Append(text.Sub(begin, text.bytes.size() - begin));
}

}  // namespace orcd::jinja
