// Builds requests for a tiny model, as Admit does.
#ifndef ORCD_WORKER_API_ORCD_BUILD_FOR_TEST_H_
#define ORCD_WORKER_API_ORCD_BUILD_FOR_TEST_H_

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/base/load_observer.h"
#include "worker/api/orcd/request_builder.h"
#include "worker/host/nano_model_for_test.h"

namespace orcd {

inline const Model& NanoModel() {
  static const std::shared_ptr<const Model> model = [] {
    NanoModelDir dir;
    NullLoadObserver observer;
    return *Model::Load(absl::StrCat(dir.path(), "/nano.gguf"), {}, observer);
  }();
  return *model;
}

inline absl::StatusOr<GenerationRequest> Build(RequestBuilder builder) {
  ORCD_RETURN_IF_ERROR(builder.CheckParameters(NanoModel()));
  ORCD_RETURN_IF_ERROR(builder.EncodePrompt(NanoModel()));
  return std::move(builder.request());
}

}  // namespace orcd

#endif  // ORCD_WORKER_API_ORCD_BUILD_FOR_TEST_H_
