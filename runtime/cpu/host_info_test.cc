#include "runtime/cpu/host_info.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/cpu/control_groups.h"
#include "testing/files.h"

namespace orcd::cpu {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(HostInfo, IsPlausible) {
  EXPECT_FALSE(ProcessorName().empty());
  EXPECT_GE(UsableCores(), 1);
  EXPECT_LE(UsableCores(), sysconf(_SC_NPROCESSORS_CONF));
  const int64_t installed = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  EXPECT_GT(AvailableMemoryBytes(), int64_t{16} << 20);
  EXPECT_LE(AvailableMemoryBytes(), installed);
}

// The files of a made-up machine that has 16 GiB of memory left.
class ControlGroupsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Write("/proc/meminfo", "MemTotal:       33554432 kB\nMemAvailable:   16777216 kB\n");
    cpu_set_t set;
    ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
    cores_ = CPU_COUNT(&set);
  }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void SetGroups(const std::string& groups) { Write("/proc/self/cgroup", groups); }
  // Sets mounts from lines of the form `GROUP POINT - TYPE SOURCE OPTIONS`.
  void SetMounts(const std::vector<std::pair<std::string, std::string>>& mounts) {
    std::string text = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n";
    for (const auto& [where, type] : mounts) {
      absl::StrAppend(&text, "30 22 0:26 ", where, " rw,nosuid shared:4 master:1 - ", type, "\n");
    }
    Write("/proc/self/mountinfo", text);
  }
  void Memory2(const std::string& folder, const std::string& max, const std::string& high,
               int64_t used, int64_t files = 0) {
    const std::string path = "/sys/fs/cgroup" + folder;
    Write(path + "/memory.max", max + "\n");
    Write(path + "/memory.high", high + "\n");
    Write(path + "/memory.current", absl::StrCat(used, "\n"));
    Write(path + "/memory.stat", absl::StrCat("anon 5\nfile 7\ninactive_file ", files / 2,
                                              "\nactive_file ", files - files / 2, "\n"));
  }
  void Memory1(const std::string& folder, int64_t limit, int64_t used, int64_t files = 0,
               int64_t of_all = kNoLimit) {
    Write(folder + "/memory.limit_in_bytes", absl::StrCat(limit, "\n"));
    Write(folder + "/memory.usage_in_bytes", absl::StrCat(used, "\n"));
    Write(folder + "/memory.stat",
          absl::StrCat("inactive_file 1\nhierarchical_memory_limit ", of_all,
                       "\ntotal_inactive_file ", files, "\ntotal_active_file 0\n"));
  }

  // "No limit" as v1 writes it.
  static constexpr int64_t kNoLimit = 9223372036854771712;
  static constexpr int64_t kMachine = 16384 * kMiB;
  const TempDir dir_;
  const std::string root_ = dir_.path().string();
  int cores_ = 0;
};

TEST_F(ControlGroupsTest, WithoutAnyTheMachineIsAll) {
  EXPECT_EQ(AvailableMemoryBytes(root_), kMachine);
  EXPECT_EQ(UsableCores(root_), cores_);
  EXPECT_TRUE(GroupsOf("memory", root_).empty());
}

TEST_F(ControlGroupsTest, ContainerOfItsOwnNamespace) {
  SetGroups("0::/\n");
  SetMounts({{"/ /sys/fs/cgroup", "cgroup2 cgroup rw,nsdelegate"}});
  Memory2("", absl::StrCat(200 * kMiB), "max", 50 * kMiB, 20 * kMiB);
  Write("/sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(AvailableMemoryBytes(root_), 170 * kMiB);
  EXPECT_EQ(UsableCores(root_), 1);
}

// A systemd unit with MemoryMax=, MemoryHigh= and CPUQuota=, its own and those of the slices above.
TEST_F(ControlGroupsTest, UnitInSlices) {
  SetGroups("0::/inference.slice/inference-gpu.slice/worker-orcd.service\n");
  SetMounts({{"/ /sys/fs/cgroup", "cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot"}});
  const std::string slice = "/inference.slice";
  const std::string inner = slice + "/inference-gpu.slice";
  const std::string unit = inner + "/worker-orcd.service";
  Memory2(unit, "max", "max", 100 * kMiB);
  Memory2(inner, "max", "max", 150 * kMiB);
  Memory2(slice, "max", "max", 160 * kMiB);
  EXPECT_EQ(AvailableMemoryBytes(root_), kMachine);
  Memory2(unit, absl::StrCat(1000 * kMiB), "max", 100 * kMiB);
  EXPECT_EQ(AvailableMemoryBytes(root_), 900 * kMiB);
  Memory2(unit, absl::StrCat(1000 * kMiB), absl::StrCat(800 * kMiB), 100 * kMiB);
  EXPECT_EQ(AvailableMemoryBytes(root_), 700 * kMiB) << "memory.high";
  // The unit's neighbours use up the slice's memory.
  Memory2(slice, absl::StrCat(2000 * kMiB), "max", 1900 * kMiB, 50 * kMiB);
  EXPECT_EQ(AvailableMemoryBytes(root_), 150 * kMiB);
  Memory2(inner, absl::StrCat(100 * kMiB), "max", 150 * kMiB);
  EXPECT_EQ(AvailableMemoryBytes(root_), 0) << "more than all is in use";

  Write("/sys/fs/cgroup" + unit + "/cpu.max", "max 100000\n");
  EXPECT_EQ(UsableCores(root_), cores_);
  Write("/sys/fs/cgroup" + slice + "/cpu.max", "10000 100000\n");
  EXPECT_EQ(UsableCores(root_), 1);
  Write("/sys/fs/cgroup" + slice + "/cpu.max", "100000000 100000\n");
  EXPECT_EQ(UsableCores(root_), cores_) << "more than there are";
}

TEST_F(ControlGroupsTest, Version1) {
  SetGroups("12:cpuset:/elsewhere\n11:memory:/box/worker\n4:cpu,cpuacct:/box\n1:name=systemd:/x\n");
  SetMounts({{"/ /sys/fs/cgroup/cpuset", "cgroup cgroup rw,cpuset"},
             {"/ /sys/fs/cgroup/memory", "cgroup cgroup rw,memory"},
             {"/ /sys/fs/cgroup/cpu,cpuacct", "cgroup cgroup rw,cpu,cpuacct"}});
  const std::string memory = "/sys/fs/cgroup/memory";
  const std::string cpu = "/sys/fs/cgroup/cpu,cpuacct";
  Memory1(memory, kNoLimit, 9000 * kMiB);
  Memory1(memory + "/box", kNoLimit, 400 * kMiB);
  Memory1(memory + "/box/worker", kNoLimit, 50 * kMiB);
  Write(cpu + "/box/cpu.cfs_quota_us", "-1\n");
  Write(cpu + "/box/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(AvailableMemoryBytes(root_), kMachine);
  EXPECT_EQ(UsableCores(root_), cores_);

  Memory1(memory + "/box/worker", 200 * kMiB, 50 * kMiB, 30 * kMiB);
  EXPECT_EQ(AvailableMemoryBytes(root_), 180 * kMiB);
  Memory1(memory + "/box", 500 * kMiB, 400 * kMiB);
  EXPECT_EQ(AvailableMemoryBytes(root_), 100 * kMiB);
  Write(cpu + "/box/cpu.cfs_quota_us", "50000\n");
  EXPECT_EQ(UsableCores(root_), 1);
}

// As Docker shows it in a container: the machine's names of groups, and only the container's
// folders.
TEST_F(ControlGroupsTest, Version1InAContainer) {
  SetGroups("5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n");
  SetMounts({{"/docker/abc /sys/fs/cgroup/memory", "cgroup cgroup rw,memory"},
             {"/docker/abc /sys/fs/cgroup/cpu,cpuacct", "cgroup cgroup rw,cpuacct,cpu"}});
  // A parent that cannot be seen has a lower limit.
  Memory1("/sys/fs/cgroup/memory", 800 * kMiB, 100 * kMiB, 0, 300 * kMiB);
  Write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "10000\n");
  Write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(AvailableMemoryBytes(root_), 200 * kMiB);
  EXPECT_EQ(UsableCores(root_), 1);
}

// v1's controllers beside v2's hierarchy, which has some or none.
TEST_F(ControlGroupsTest, BothVersions) {
  SetGroups("3:memory:/old\n0::/system.slice/w.service\n");
  SetMounts({{"/ /sys/fs/cgroup/unified", "cgroup2 cgroup rw"},
             {"/ /mem\\040ory", "cgroup cgroup rw,memory"}});
  Memory1("/mem ory/old", 300 * kMiB, 100 * kMiB);
  Write("/sys/fs/cgroup/unified/system.slice/w.service/cpu.max", "1000 100000\n");
  EXPECT_EQ(AvailableMemoryBytes(root_), 200 * kMiB);
  EXPECT_EQ(UsableCores(root_), 1);
}

TEST_F(ControlGroupsTest, FoldersFromTheGroupUp) {
  const auto folders = [&](const std::string& mounted, const std::string& group) {
    SetGroups(absl::StrCat("0::", group, "\n"));
    SetMounts({{mounted + " /cg", "cgroup2 cgroup rw"}});
    std::vector<std::string> found;
    for (const ControlGroup& one : GroupsOf("cpu", root_)) {
      EXPECT_EQ(one.version, GroupVersion::kV2);
      found.push_back(one.folder.substr(root_.size()));
    }
    return found;
  };
  using Folders = std::vector<std::string>;
  EXPECT_EQ(folders("/", "/"), (Folders{"/cg"}));
  EXPECT_EQ(folders("/", "/a/b.service"), (Folders{"/cg/a/b.service", "/cg/a", "/cg"}));
  EXPECT_EQ(folders("/a", "/a/b"), (Folders{"/cg/b", "/cg"}));
  EXPECT_EQ(folders("/a", "/ab/c"), (Folders{"/cg"})) << "another group of a like name";
  EXPECT_EQ(folders("/", "/../outside"), (Folders{"/cg"})) << "outside of the namespace";
  EXPECT_EQ(folders("/", "/with:colon/x"), (Folders{"/cg/with:colon/x", "/cg/with:colon", "/cg"}));
}

}  // namespace
}  // namespace orcd::cpu
