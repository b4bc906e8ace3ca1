// NumPy's array file format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#ifndef ORCD_TOOLS_ORCD_INSPECT_NPY_H_
#define ORCD_TOOLS_ORCD_INSPECT_NPY_H_

#include <cstdint>
#include <fstream>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace orcd {

// Writes a float32 matrix [rows, cols] in row-major order.
class NpyWriter {
 public:
  // kPermissionDenied if the file cannot be written.
  static absl::StatusOr<NpyWriter> Create(const std::string& path, int64_t rows, int64_t cols);

  void Append(std::span<const float> values);

  // kDataLoss if not every byte was written. kFailedPrecondition if the number of values appended
  // differs from the header's.
  absl::Status Finish();

 private:
  NpyWriter() = default;

  std::string path_;
  std::ofstream file_;
  int64_t missing_ = 0;
};

}  // namespace orcd

#endif  // ORCD_TOOLS_ORCD_INSPECT_NPY_H_
