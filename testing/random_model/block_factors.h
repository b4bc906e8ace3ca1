// Writes the numbers that the weights of a block are multiples of, for tests.
#ifndef ORCD_TESTING_RANDOM_MODEL_BLOCK_FACTORS_H_
#define ORCD_TESTING_RANDOM_MODEL_BLOCK_FACTORS_H_

#include <cstddef>

#include "runtime/gguf/block_formats.h"

namespace orcd {

// 2 for types with d and m, else 1.
int FactorCount(TensorType type);

// Makes `value` factor `which` of the block, as the type can hold it: the weight itself of a plain
// type, d (0) or m (1) of others. MXFP4 gets the power of two at or below its magnitude. NVFP4 gets
// the exponent of twice its magnitude in every scale, whose mantissas stay; the exponent is clamped
// to [1, 14].
void PutFactor(TensorType type, int which, float value, std::byte* block);

}  // namespace orcd

#endif  // ORCD_TESTING_RANDOM_MODEL_BLOCK_FACTORS_H_
