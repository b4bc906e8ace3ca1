// Reads an architecture's metadata keys, by the names that all architectures share.
#ifndef ORCD_RUNTIME_MODEL_ARCH_KEYS_H_
#define ORCD_RUNTIME_MODEL_ARCH_KEYS_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/gguf/gguf_reader.h"

namespace orcd {

// Names are without the architecture and its dot: `block_count`. Errors name the whole key; those
// of a missing key, a wrong type or a value out of range are kInvalidArgument. Views the reader.
class Keys {
 public:
  Keys(const GgufReader& gguf, std::string_view architecture)
      : gguf_(gguf), architecture_(architecture) {}

  const GgufReader& gguf() const { return gguf_; }
  std::string_view architecture() const { return architecture_; }
  std::string Key(std::string_view name) const;
  bool Has(std::string_view name) const;

  // Errors about a key; `what` follows the key in the message.
  absl::Status Invalid(std::string_view name, std::string_view what) const;
  absl::Status Unsupported(std::string_view name, std::string_view what) const;

  // A number from 1 to `max`; `fallback` if the key is missing, unless that is 0.
  absl::StatusOr<int> Size(std::string_view name, int max, int fallback = 0) const;
  // A number from 0 to `max`; `fallback` if the key is missing.
  absl::StatusOr<int> Count(std::string_view name, int max, int fallback = 0) const;
  // As Size, of a key that may hold an array with a number for each layer. kUnimplemented if they
  // differ.
  absl::StatusOr<int> SizeOfLayers(std::string_view name, int max, int layers,
                                   int fallback = 0) const;
  // A number above `low` and below `high`; `fallback` if the key is missing and there is one.
  absl::StatusOr<float> NumberBetween(std::string_view name, float low, float high,
                                      std::optional<float> fallback = std::nullopt) const;
  // A factor or bound of what is computed: a number between 1e-6 and 1e6; `fallback` if the key is
  // missing and there is one.
  absl::StatusOr<float> Scale(std::string_view name,
                              std::optional<float> fallback = std::nullopt) const;
  // As Scale, but 0 is valid and means, like a missing key, that the file does not set it.
  absl::StatusOr<float> ScaleOrZero(std::string_view name) const;
  absl::StatusOr<bool> Bool(std::string_view name, bool fallback) const;

 private:
  const GgufReader& gguf_;
  const std::string_view architecture_;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_ARCH_KEYS_H_
