// Computes the block of a model that predicts the token after the next one.
#ifndef ORCD_RUNTIME_CPU_PREDICTOR_H_
#define ORCD_RUNTIME_CPU_PREDICTOR_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/backend/backend.h"
#include "runtime/model/model.h"

namespace orcd {

// Rows of predictions.
struct Predictions {
  std::vector<float> logits;  // [rows, vocab]
  std::vector<float> hidden;  // [rows, hidden], for further predictions
};

// Holds the keys and values of one sequence. One thread at a time.
class Predictor {
 public:
  virtual ~Predictor() = default;

  // Computes consecutive rows, of which the first has number `position`; those before it have been
  // computed, and those from there on are forgotten. Row i takes tokens[i] and row i of `hidden`,
  // [rows, hidden]. At most as many rows as the model's context.
  virtual Predictions Run(std::span<const int32_t> tokens, std::span<const float> hidden,
                          int64_t position) = 0;
};

// For sequences of up to `max_tokens`, on `threads` threads; 0: one per core. Null if the file
// holds no such block. Errors are those of PredictBlock::FromGguf, and kResourceExhausted.
absl::StatusOr<std::unique_ptr<Predictor>> CreateCpuPredictor(std::shared_ptr<const Model> model,
                                                              KvType kv_type, int max_tokens,
                                                              int threads);

}  // namespace orcd

#endif  // ORCD_RUNTIME_CPU_PREDICTOR_H_
