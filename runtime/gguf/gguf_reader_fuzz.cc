// Feeds libFuzzer's inputs to the GGUF parser, as files that a client asks to load.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "runtime/gguf/dequantize.h"
#include "runtime/gguf/gguf_header.h"

namespace {

// Reads every byte that the parser declares valid, so that a sanitizer detects a wrong one.
void ReadTensors(const orcd::GgufHeader& header) {
  for (const orcd::TensorView& tensor : header.tensors) {
    const orcd::TensorTypeInfo& info = orcd::GetTensorTypeInfo(tensor.type);
    if (tensor.row_bytes() * tensor.row_count() != tensor.data.size()) std::abort();
    std::vector<float> weights(info.block_weights);
    for (size_t at = 0; at < tensor.data.size(); at += info.block_bytes) {
      orcd::Dequantize(tensor.type, tensor.data.data() + at, info.block_weights, weights.data());
    }
  }
}

void ReadMetadata(const orcd::GgufHeader& header) {
  size_t bytes = 0;
  for (const auto& [key, entry] : header.entries) {
    for (char c : key) bytes += static_cast<unsigned char>(c);
    if (const auto* text = std::get_if<std::string_view>(&entry.value)) {
      for (char c : *text) bytes += static_cast<unsigned char>(c);
    }
    if (const auto* array = std::get_if<std::shared_ptr<const orcd::GgufArray>>(&entry.value)) {
      for (std::string_view text : (*array)->strings) {
        for (char c : text) bytes += static_cast<unsigned char>(c);
      }
    }
  }
  // Keeps the reads above from being optimised away.
  asm volatile("" : : "r"(bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  const auto header = orcd::ParseGgufHeader(file, orcd::AllowedTensorTypes::kReadable);
  if (header.ok()) {
    ReadMetadata(*header);
    ReadTensors(*header);
  }
  const auto look = orcd::ParseGgufHeader(file, orcd::AllowedTensorTypes::kSized);
  // A file that may be run may also be inspected.
  if (header.ok() && !look.ok()) std::abort();
  return 0;
}
