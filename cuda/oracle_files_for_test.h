// The small models of $ORCD_ORACLE_DIR that the GPU backend runs, beside those of Qwen2.
#ifndef ORCD_CUDA_ORACLE_FILES_FOR_TEST_H_
#define ORCD_CUDA_ORACLE_FILES_FOR_TEST_H_

#include <algorithm>
#include <string>

#include "gtest/gtest.h"

namespace orcd::cuda {

// Paths in the folder, without `.gguf`.
inline constexpr const char* kArchitectureOracles[] = {
    "arch/llama3-F16",           "arch/llama3-Q4_K_M",
    "arch/llama3-tied-F16",      "arch/mistral-F16",
    "arch/mistral-Q4_K_M",       "arch/qwen3-F16",
    "arch/qwen3-Q4_K_M",         "arch/gemma2-F16",
    "arch/gemma2-Q4_K_M",        "arch/gemma3-F16",
    "arch/gemma3-Q4_0",          "arch/phi3-F16",
    "arch/phi3-longrope-Q4_K_M", "arch/granite-F16",
    "arch/granite-Q4_K_M",       "arch/olmo2-F16",
    "arch/olmo2-Q4_K_M",         "arch/glm4-F16",
    "arch/glm4-Q4_K_M",          "arch2/mistral3-F16",
    "arch2/mistral3-Q4_K_M",     "arch2/seed_oss-F16",
    "arch2/smollm3-F16",         "arch2/cohere2-F16",
    "arch/qwen3moe-F16",         "arch/qwen3moe-Q4_K_M",
    "arch/mixtral-F16",          "arch/mixtral-Q4_0",
    "arch/gpt-oss-F16",          "arch/gpt-oss-MXFP4",
    "arch2/glm4moe-mtp-F16",     "arch2/glm4moe-Q4_K_M"};

// Those with recurrent layers.
inline constexpr const char* kHybridOracles[] = {
    "hybrid/qwen35-Q4_K_M",    "hybrid/qwen35-mtp-F16",   "hybrid/qwen35moe-F16",
    "hybrid/qwen35moe-IQ4_XS", "hybrid/qwen3next-Q4_K_M", "hybrid/qwen3next-Q8_0"};

// The name of a test of such a file.
inline std::string OracleFileName(const ::testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  name = name.substr(name.find('/') + 1);
  std::ranges::replace(name, '-', '_');
  return name;
}

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_ORACLE_FILES_FOR_TEST_H_
