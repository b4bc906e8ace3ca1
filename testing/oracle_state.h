// Compares recurrent states with those that another program computed. For tests.
#ifndef ORCD_TESTING_ORACLE_STATE_H_
#define ORCD_TESTING_ORACLE_STATE_H_

#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/model/spec.h"
#include "testing/numpy.h"

namespace orcd {

// Expects of each part of a state (Backend::RecurrentState) that its NMSE is at most `bound`.
// `file` is an .npz archive with the arrays `conv.N` and `S.N` of each recurrent layer N.
inline void ExpectOracleState(const ModelSpec& spec, std::span<const float> state,
                              const std::string& file, double bound) {
  ASSERT_EQ(state.size(), static_cast<size_t>(spec.state_floats()));
  auto oracle = cpu::ReadNpz(file);
  for (int i = 0; i < spec.num_layers(); ++i) {
    if (!spec.layers[i].recurrent()) continue;
    for (const std::string part : {"conv.", "S."}) {
      const cpu::NumpyArray& array = oracle[part + std::to_string(i)];
      std::vector<double> expected;
      if (array.type == "<f8") {
        expected = array.As<double>();
      } else {
        ASSERT_EQ(array.type, "<f4");
        for (const float value : array.As<float>()) expected.push_back(value);
      }
      ASSERT_GT(expected.size(), 0u);
      ASSERT_LE(expected.size(), state.size());
      double squared = 0;
      double reference = 0;
      for (size_t e = 0; e < expected.size(); ++e) {
        const double difference = double{state[e]} - expected[e];
        squared += difference * difference;
        reference += expected[e] * expected[e];
      }
      std::printf("%s%d: NMSE %.2e\n", part.c_str(), i, squared / reference);
      EXPECT_LE(squared / reference, bound) << part << i;
      state = state.subspan(expected.size());
    }
  }
  EXPECT_TRUE(state.empty());
}

}  // namespace orcd

#endif  // ORCD_TESTING_ORACLE_STATE_H_
