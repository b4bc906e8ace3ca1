// Random-weight models that tests write when they run.
#ifndef ORCD_INTEGRATION_TESTS_TEST_MODELS_H_
#define ORCD_INTEGRATION_TESTS_TEST_MODELS_H_

#include <cstdint>
#include <string>

namespace orcd::testing {

// Two layers, every matrix in F16, with a small tokenizer and the Qwen2.5 chat template: a step of
// it takes well under a millisecond. A function of `seed`. Aborts where it cannot be written.
void WriteNanoModel(const std::string& path, uint64_t seed = 1);

// As the nano model, with so many layers of zeros (400 MB, but a hole on the disk) that its load
// takes a while and reports progress.
void WriteSlowToLoadModel(const std::string& path);

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_TEST_MODELS_H_
