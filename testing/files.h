// Files of tests.
#ifndef ORCD_TESTING_FILES_H_
#define ORCD_TESTING_FILES_H_

#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

namespace orcd {

// All bytes of a file; empty if it cannot be read.
inline std::string ReadFile(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return std::move(bytes).str();
}

// Owns a new folder below the system's temporary folder, and everything in it. One thread.
class TempDir {
 public:
  TempDir() {
    std::string name = std::filesystem::temp_directory_path() / "orcd-test-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) {
      std::perror(name.c_str());
      std::abort();
    }
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // The path of `name` in the folder.
  std::string File(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace orcd

#endif  // ORCD_TESTING_FILES_H_
