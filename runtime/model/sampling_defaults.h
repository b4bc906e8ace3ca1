// The sampling parameters that a model's file recommends (`general.sampling.*`).
#ifndef ORCD_RUNTIME_MODEL_SAMPLING_DEFAULTS_H_
#define ORCD_RUNTIME_MODEL_SAMPLING_DEFAULTS_H_

#include <string>
#include <vector>

#include "runtime/gguf/gguf_reader.h"
#include "runtime/sampling/partial_sampling.h"

namespace orcd {

struct SamplingDefaults {
  PartialSampling params = {};
  // A sentence for each key whose value is malformed or has no counterpart here; such keys are
  // ignored.
  std::vector<std::string> warnings = {};
};

// The names of the keys are llama.cpp's (llama-arch.cpp), whose converter writes the values of a
// model's generation_config.json. A number may have any type; a top_k of 0 or less keeps all
// tokens.
SamplingDefaults ReadSamplingDefaults(const GgufReader& gguf);

}  // namespace orcd

#endif  // ORCD_RUNTIME_MODEL_SAMPLING_DEFAULTS_H_
