// A model whose steps run on memory of expressions. Keys and values, recurrent states, and the
// logits from which tokens are drawn, must be those of the model's definition, wherever data lies
// and whenever weights are dequantised.
#ifndef ORCD_CUDA_FORWARD_CHECK_CHECKED_MODEL_FOR_TEST_H_
#define ORCD_CUDA_FORWARD_CHECK_CHECKED_MODEL_FOR_TEST_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cuda/device.h"
#include "cuda/device_weights.h"
#include "cuda/forward.h"
#include "cuda/forward_check/symbolic_gpu.h"
#include "cuda/step_tables.h"
#include "runtime/model/spec.h"
#include "testing/random_model/model_shapes.h"

namespace orcd::cuda {

// The differences between a model and Qwen2's.
struct ModelForm {
  std::string name = {};
  bool qkv_biases = false;
  // The output of attention, gate, up and down have biases; of experts, their router as well.
  bool other_biases = false;
  bool selection_bias = false;
  // A block predicts tokens. It has the model's embedding and head, or its own.
  bool predicts = false;
  bool own_head = false;
  // May change a spec whose layers are alike and have no norms or rules of their own.
  std::function<void(ModelSpec& spec)> change = {};
};

// Forms of the families, Qwen2's first, and some that no family has.
std::vector<ModelForm> AllForms();
// Fails the program if there is none of that name.
ModelForm FormOf(const std::string& name);

// Sizes that are no multiples of 64, and heads that together are wider than the hidden size.
RandomModelShape OddShape();

// A published model as its files are, with some of its layers.
struct ModelCase {
  RandomModelShape shape;
  FileType file_type;
  int layers;
  // Gives each matrix a type of its own, instead of the file type's.
  bool mixed = false;
  ModelForm form = FormOf("qwen2");
  // True if the kernels fuse (KernelSet::fuses).
  bool fuses = true;

  // Unique among cases, of letters, digits and underscores.
  std::string name() const;
};

// A decode step of one token per sequence.
StepShape DecodeStep(int sequences);
// The same of sequences and drafts.
StepShape DraftedStep(int sequences);
// A step of prompts, of which `logit_rows` tokens have logits.
StepShape PromptStep(int tokens, int logit_rows);

// One at a time, on one thread. Needs no GPU.
class CheckedModel {
 public:
  explicit CheckedModel(const ModelCase& c);
  CheckedModel(const CheckedModel&) = delete;
  CheckedModel& operator=(const CheckedModel&) = delete;

  // A step's launches before they are performed, and what a fault may put in their arguments.
  struct Recorded {
    std::vector<KernelLaunch>& launches;
    const ForwardBuffers& buffers;
    const DeviceWeights& weights;
    // Those of the other step in flight.
    const TableLayout& other_tables;
  };
  // Runs a step on what the steps before have left in the buffers, with its launches changed by
  // `fault`. Returns what is wrong; empty if nothing is.
  std::string Check(const StepShape& step, const std::function<void(const Recorded&)>& fault = {});

 private:
  // Enqueues what follows a step and its draws.
  absl::Status EnqueueBlock(const TableLayout& tables, const StepShape& step, cudaStream_t stream);

  // With the block's layer, if one predicts.
  const ModelSpec spec_;
  const DeviceWeights weights_;
  const ForwardBuffers buffers_;
  const KvCaches kv_;
  const DeltaStates states_;
  const KernelSet kernels_;
  const DeviceInfo device_;
  Forward forward_;
  SymbolicGpu gpu_;
  int steps_ = 0;
};

}  // namespace orcd::cuda

#endif  // ORCD_CUDA_FORWARD_CHECK_CHECKED_MODEL_FOR_TEST_H_
