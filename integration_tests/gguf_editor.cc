#include "integration_tests/gguf_editor.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "testing/files.h"

namespace orcd::testing {
namespace {

constexpr size_t kAlignment = 32;

[[noreturn]] void Die(std::string_view what) {
  std::fprintf(stderr, "GgufEditor: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

// Reads values from the bytes of a file in order.
class Cursor {
 public:
  explicit Cursor(const std::string& bytes) : bytes_(bytes) {}

  template <typename T>
  T Number() {
    T value;
    std::memcpy(&value, Take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string String() { return std::string(Take(Number<uint64_t>())); }
  std::string_view Take(size_t count) {
    if (count > bytes_.size() - pos_) Die("the file ends too soon");
    const std::string_view taken = std::string_view(bytes_).substr(pos_, count);
    pos_ += count;
    return taken;
  }
  // Consumes a value of `type` and returns its bytes.
  std::string Value(uint32_t type) {
    const size_t begin = pos_;
    SkipValue(type);
    return bytes_.substr(begin, pos_ - begin);
  }
  size_t pos() const { return pos_; }

 private:
  void SkipValue(uint32_t type) {
    constexpr size_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type == kGgufString) {
      String();
    } else if (type == kGgufArray) {
      const uint32_t element = Number<uint32_t>();
      const uint64_t count = Number<uint64_t>();
      for (uint64_t i = 0; i < count; ++i) SkipValue(element);
    } else if (type < std::size(kSizes)) {
      Take(kSizes[type]);
    } else {
      Die("unknown type");
    }
  }

  const std::string& bytes_;
  size_t pos_ = 0;
};

template <typename T>
std::string NumberBytes(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

size_t Align(size_t pos) { return (pos + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

std::string U32Bytes(uint32_t value) { return NumberBytes(value); }
std::string U64Bytes(uint64_t value) { return NumberBytes(value); }
std::string F32Bytes(float value) { return NumberBytes(value); }
std::string StringBytes(std::string_view value) {
  return U64Bytes(value.size()) + std::string(value);
}

GgufEditor::GgufEditor(const std::string& path) {
  const std::string bytes = ReadFile(path);
  Cursor cursor(bytes);
  magic = cursor.Take(4);
  version = cursor.Number<uint32_t>();
  const uint64_t tensor_total = cursor.Number<uint64_t>();
  const uint64_t entry_total = cursor.Number<uint64_t>();
  for (uint64_t i = 0; i < entry_total; ++i) {
    Entry entry;
    entry.key = cursor.String();
    entry.type = cursor.Number<uint32_t>();
    entry.value = cursor.Value(entry.type);
    if (entry.key == "general.alignment" && entry.value != U32Bytes(kAlignment)) {
      Die("a file of another alignment");
    }
    entries.push_back(std::move(entry));
  }
  for (uint64_t i = 0; i < tensor_total; ++i) {
    Tensor tensor;
    tensor.name = cursor.String();
    tensor.ne.resize(cursor.Number<uint32_t>());
    for (uint64_t& n : tensor.ne) n = cursor.Number<uint64_t>();
    tensor.type = cursor.Number<uint32_t>();
    tensor.offset = cursor.Number<uint64_t>();
    tensors.push_back(std::move(tensor));
  }
  data = bytes.substr(std::min(Align(cursor.pos()), bytes.size()));
}

std::string GgufEditor::Header() const {
  std::string header = magic + U32Bytes(version) + U64Bytes(tensor_count.value_or(tensors.size())) +
                       U64Bytes(entry_count.value_or(entries.size()));
  for (const Entry& entry : entries) {
    header += StringBytes(entry.key) + U32Bytes(entry.type) + entry.value;
  }
  for (const Tensor& tensor : tensors) {
    header += StringBytes(tensor.name) + U32Bytes(static_cast<uint32_t>(tensor.ne.size()));
    for (uint64_t n : tensor.ne) header += U64Bytes(n);
    header += U32Bytes(tensor.type) + U64Bytes(tensor.offset);
  }
  return header;
}

size_t GgufEditor::DataOffset() const { return Align(Header().size()); }

std::string GgufEditor::Bytes() const {
  std::string bytes = Header();
  bytes.resize(Align(bytes.size()));
  return bytes + data;
}

void GgufEditor::Write(const std::string& path) const {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  const std::string bytes = Bytes();
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) Die("cannot write " + path);
}

GgufEditor::Entry& GgufEditor::Find(std::string_view key) {
  for (Entry& entry : entries) {
    if (entry.key == key) return entry;
  }
  Die("no key " + std::string(key));
}

GgufEditor::Tensor& GgufEditor::FindTensor(std::string_view name) {
  for (Tensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  Die("no tensor " + std::string(name));
}

void GgufEditor::Remove(std::string_view key) {
  Find(key);
  std::erase_if(entries, [&](const Entry& entry) { return entry.key == key; });
}

void GgufEditor::RemoveTensor(std::string_view name) {
  FindTensor(name);
  std::erase_if(tensors, [&](const Tensor& tensor) { return tensor.name == name; });
}

void GgufEditor::Set(std::string_view key, uint32_t type, std::string value) {
  std::erase_if(entries, [&](const Entry& entry) { return entry.key == key; });
  entries.push_back({std::string(key), type, std::move(value)});
}

std::vector<std::string> GgufEditor::GetStrings(std::string_view key) {
  Cursor cursor(Find(key).value);
  if (cursor.Number<uint32_t>() != kGgufString) Die("no strings");
  std::vector<std::string> strings(cursor.Number<uint64_t>());
  for (std::string& s : strings) s = cursor.String();
  return strings;
}

void GgufEditor::SetStrings(std::string_view key, const std::vector<std::string>& strings) {
  std::string value = U32Bytes(kGgufString) + U64Bytes(strings.size());
  for (const std::string& s : strings) value += StringBytes(s);
  Set(key, kGgufArray, std::move(value));
}

}  // namespace orcd::testing
