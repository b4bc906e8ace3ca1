// The fixture of tests that ask for a form of the output.
#ifndef ORCD_INTEGRATION_TESTS_CONSTRAINT_FIXTURE_H_
#define ORCD_INTEGRATION_TESTS_CONSTRAINT_FIXTURE_H_

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "integration_tests/worker_fixture.h"

namespace orcd::testing {

class ConstraintTest : public WorkerTest {
 protected:
  // Starts the worker and loads `model`. Skips the test if the worker was built without
  // constraints, so that a CI that lacks them fails.
  void StartConstrained(std::vector<std::string> args = {},
                        const std::string& model = "nano.gguf") {
    ASSERT_NO_FATAL_FAILURE(StartWorker(std::move(args)));
    const LoadResult loaded = client().Load(model);
    ASSERT_TRUE(loaded.loaded) << loaded.error;
    if (loaded.loaded->constraints_supported()) return;
    GTEST_SKIP() << "this worker was built without constraints; see ORCD_CONSTRAINTS";
  }

  // A request whose output is one of these.
  static v1::GenerateRequest Choice(const std::vector<std::string>& choices) {
    v1::GenerateRequest request = TextRequest("Which?", 200);
    for (const std::string& choice : choices) {
      request.mutable_constraint()->mutable_choice()->add_choices(choice);
    }
    return request;
  }
};

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_CONSTRAINT_FIXTURE_H_
