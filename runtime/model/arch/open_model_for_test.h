// A model file of a test, open.
#ifndef ORCD_RUNTIME_MODEL_ARCH_OPEN_MODEL_FOR_TEST_H_
#define ORCD_RUNTIME_MODEL_ARCH_OPEN_MODEL_FOR_TEST_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "runtime/gguf/gguf_reader.h"
#include "runtime/model/architectures.h"
#include "runtime/model/weights.h"
#include "testing/files.h"
#include "testing/test_model.h"

namespace orcd {

// A model's file, open, with its spec and weights.
struct OpenModel {
  explicit OpenModel(const TestModel& model) : gguf(model.WriteAndOpen(dir.File("model.gguf"))) {
    auto read = ReadModelSpec(*gguf);
    EXPECT_TRUE(read.ok()) << read.status();
    if (!read.ok()) return;
    spec = *std::move(read);
    auto found = ModelWeights::FromGguf(*gguf, spec);
    EXPECT_TRUE(found.ok()) << found.status();
    if (found.ok()) weights = *std::move(found);
    weights.layers.resize(spec.layers.size());
  }
  const std::byte* data(const std::string& tensor) const {
    return gguf->FindTensor(tensor)->data.data();
  }

  TempDir dir;
  std::unique_ptr<GgufReader> gguf;
  ModelSpec spec;
  ModelWeights weights;
};

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_ARCH_OPEN_MODEL_FOR_TEST_H_
