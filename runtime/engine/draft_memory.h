// The memory of a draft model beside the model that it guesses for.
#ifndef ORCD_RUNTIME_ENGINE_DRAFT_MEMORY_H_
#define ORCD_RUNTIME_ENGINE_DRAFT_MEMORY_H_

#include <cstdint>

#include "runtime/backend/backend.h"
#include "runtime/model/model.h"
#include "runtime/model/spec.h"

namespace orcd {

// Positions of a draft model's KV cache, all sequences together. Fewer if as many sequences as may
// run, each as long as the draft model's context, take fewer. A sequence that finds no room gets no
// guesses.
inline constexpr int64_t kDraftKvTokens = 32'768;

// Options for the backend of the draft model `draft`, from those of the model's backend: the same
// sequences, threads and device, and a KV cache and cells of recurrent states of its own.
BackendOptions DraftBackendOptions(const ModelSpec& draft, const BackendOptions& options);

// Bytes that a backend with these options takes for the draft model, but for its recurrent states:
// its weights and KV cache, and an estimate of its activations.
int64_t DraftMemoryBytes(const Model& draft, const BackendOptions& draft_options);
// Bytes of its recurrent states for each sequence at most.
int64_t DraftStateBytes(const ModelSpec& draft);

}  // namespace orcd

#endif  // ORCD_RUNTIME_ENGINE_DRAFT_MEMORY_H_
