// The tables of docs/errors.md that list every bad input, compared with the worker's answers.
#ifndef ORCD_INTEGRATION_TESTS_ERRORS_TABLE_H_
#define ORCD_INTEGRATION_TESTS_ERRORS_TABLE_H_

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "integration_tests/worker_client.h"

namespace orcd::testing {

// Keeps rows in the order in which they are added. One thread.
class ErrorsTable {
 public:
  // `heading` is the heading of the section in docs/errors.md, such as `Bad model files`.
  explicit ErrorsTable(std::string heading) : heading_(std::move(heading)) {}

  // Adds the worker's answer to the input that `input` describes.
  void Add(const std::string& input, const RpcError& error);

  // True if the table under the heading has exactly these rows. With ORCD_WRITE_DOCS=1 in the
  // environment the rows are written to the document first.
  ::testing::AssertionResult IsInTheDocument() const;

 private:
  const std::string heading_;
  std::vector<std::string> rows_;
};

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_ERRORS_TABLE_H_
