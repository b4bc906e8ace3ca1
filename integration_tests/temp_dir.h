// A temporary folder that is deleted with its owner.
#ifndef ORCD_INTEGRATION_TESTS_TEMP_DIR_H_
#define ORCD_INTEGRATION_TESTS_TEMP_DIR_H_

#include <filesystem>
#include <string>

namespace orcd::testing {

// Owns a new folder below the tests' temporary folder, and everything in it. One thread.
class TempDir {
 public:
  TempDir();
  ~TempDir();

  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // The path of `name` in the folder.
  std::string File(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace orcd::testing

#endif  // ORCD_INTEGRATION_TESTS_TEMP_DIR_H_
