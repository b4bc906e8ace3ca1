// Reads NumPy's .npy files and .npz archives, which hold expected results. For tests.
#ifndef ORCD_TESTING_NUMPY_H_
#define ORCD_TESTING_NUMPY_H_

#include <zlib.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "testing/files.h"

namespace orcd::cpu {

// An array as the file has it. Empty if it could not be read.
struct NumpyArray {
  // Such as `<f4`.
  std::string type;
  std::vector<int64_t> shape;
  std::string data;

  // The elements, which must be of the type that the file holds.
  template <typename T>
  std::vector<T> As() const {
    std::vector<T> values(data.size() / sizeof(T));
    std::memcpy(values.data(), data.data(), values.size() * sizeof(T));
    return values;
  }
};

template <typename T>
T ReadLittleEndian(const std::string& bytes, size_t offset) {
  T value = 0;
  if (offset + sizeof(T) <= bytes.size()) std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

inline NumpyArray ParseNpy(const std::string& bytes) {
  if (bytes.compare(0, 6, "\x93NUMPY") != 0) return {};
  const size_t start = 10 + ReadLittleEndian<uint16_t>(bytes, 8);
  const std::string header = bytes.substr(10, start - 10);
  NumpyArray array;
  const size_t type = header.find('\'', header.find(':', header.find("descr"))) + 1;
  array.type = header.substr(type, header.find('\'', type) - type);
  const char* at = header.c_str() + header.find('(') + 1;
  while (*at != ')' && *at != '\0') {
    char* end = nullptr;
    const int64_t size = std::strtoll(at, &end, 10);
    if (end == at) {
      ++at;
      continue;
    }
    array.shape.push_back(size);
    at = end;
  }
  array.data = bytes.substr(start);
  return array;
}

inline NumpyArray ReadNpy(const std::string& path) { return ParseNpy(ReadFile(path)); }

inline std::string Inflate(const std::string& compressed, size_t size) {
  std::string out(size, '\0');
  z_stream stream = {};
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed.data()));
  stream.avail_in = static_cast<uInt>(compressed.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  // A zip's deflate stream has no header of its own.
  inflateInit2(&stream, -MAX_WBITS);
  const bool whole = inflate(&stream, Z_FINISH) == Z_STREAM_END && stream.avail_out == 0;
  inflateEnd(&stream);
  return whole ? out : std::string();
}

// Arrays by name; empty if the file is absent or not a zip.
inline std::map<std::string, NumpyArray> ReadNpz(const std::string& path) {
  const std::string zip = ReadFile(path);
  std::map<std::string, NumpyArray> arrays;
  const size_t end = zip.rfind("PK\x05\x06");
  if (end == std::string::npos) return arrays;
  size_t entry = ReadLittleEndian<uint32_t>(zip, end + 16);
  while (zip.compare(entry, 4, "PK\x01\x02") == 0) {
    const uint16_t method = ReadLittleEndian<uint16_t>(zip, entry + 10);
    const uint32_t compressed = ReadLittleEndian<uint32_t>(zip, entry + 20);
    const uint32_t size = ReadLittleEndian<uint32_t>(zip, entry + 24);
    const uint16_t name_length = ReadLittleEndian<uint16_t>(zip, entry + 28);
    const uint16_t extra = ReadLittleEndian<uint16_t>(zip, entry + 30);
    const uint16_t comment = ReadLittleEndian<uint16_t>(zip, entry + 32);
    const uint32_t local = ReadLittleEndian<uint32_t>(zip, entry + 42);
    const std::string name = zip.substr(entry + 46, name_length);
    const size_t data = local + 30 + ReadLittleEndian<uint16_t>(zip, local + 26) +
                        ReadLittleEndian<uint16_t>(zip, local + 28);
    const std::string bytes = zip.substr(data, compressed);
    arrays[name.substr(0, name.rfind(".npy"))] =
        ParseNpy(method == 0 ? bytes : Inflate(bytes, size));
    entry += 46 + name_length + extra + comment;
  }
  return arrays;
}

}  // namespace orcd::cpu

#endif  // ORCD_TESTING_NUMPY_H_
