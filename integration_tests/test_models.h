// Random-weight models that tests write when they run.
#ifndef ORCD_INTEGRATION_TESTS_TEST_MODELS_H_
#define ORCD_INTEGRATION_TESTS_TEST_MODELS_H_

#include <cstdint>
#include <string>

namespace orcd::testing {

// Writes a model of two layers, every matrix in F16, with a small tokenizer and the Qwen2.5 chat
// template; a step takes well under a millisecond. The same `seed` gives the same file. Aborts if
// the file cannot be written.
void WriteNanoModel(const std::string& path, uint64_t seed = 1);

// Writes the nano model with extra layers of zeros (400 MB, sparse on disk), so that its load takes
// a while and reports progress.
void WriteSlowToLoadModel(const std::string& path);

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_TEST_MODELS_H_
