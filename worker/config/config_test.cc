#include "worker/config/config.h"

#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace orcd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ConfigResult Parse(const std::vector<std::string>& args, const Environment& environment = {}) {
  return ParseConfig(args, environment);
}

std::string WriteFile(const std::string& content) {
  std::string path = absl::StrCat(::testing::TempDir(), "/config-", getpid(), ".toml");
  std::ofstream(path) << content;
  return path;
}

TEST(ConfigTest, Defaults) {
  const ConfigResult result = Parse({}, {{"HOME", "/home/someone"}});
  ASSERT_TRUE(result.config.has_value()) << result.output;
  EXPECT_EQ(result.config->listen, "127.0.0.1:50051");
  EXPECT_EQ(result.config->model_dir, "/home/someone/.cache/orcd/models");
  EXPECT_EQ(result.config->kv_cache_bytes, 0);
  EXPECT_EQ(result.config->state_cache_bytes, 0);
  EXPECT_EQ(result.config->kv_type, KvType::kF16);
  EXPECT_EQ(result.config->wait, WaitMode::kYield);
  EXPECT_EQ(result.config->drain_timeout, absl::Seconds(30));
  EXPECT_EQ(result.config->settle, absl::ZeroDuration());
  EXPECT_EQ(result.config->log_format, LogFormat::kText);
  EXPECT_TRUE(result.config->orchestrators.empty());
}

TEST(ConfigTest, FlagsOfConstraints) {
  const ConstraintLimits defaults;
  const ConfigResult absent = Parse({});
  ASSERT_TRUE(absent.config.has_value()) << absent.output;
  EXPECT_EQ(absent.config->constraints.max_bytes, defaults.max_bytes);
  EXPECT_EQ(absent.config->constraints.compile_time, defaults.compile_time);
  EXPECT_EQ(absent.config->constraints.threads, defaults.threads);
  EXPECT_EQ(absent.config->constraints.max_waiting, defaults.max_waiting);
  EXPECT_EQ(absent.config->constraints.max_live, defaults.max_live);
  EXPECT_EQ(absent.config->constraints.rule_bytes, defaults.rule_bytes);
  EXPECT_EQ(absent.config->constraints.cache_bytes, defaults.cache_bytes);
  const ConfigResult result =
      Parse({"--constraint-max-bytes", "1MiB", "--constraint-compile-time", "500ms",
             "--constraint-threads", "3", "--constraint-max-waiting", "7", "--constraint-max-live",
             "0", "--constraint-rule-memory", "8MiB", "--constraint-cache", "1Gi"});
  ASSERT_TRUE(result.config.has_value()) << result.output;
  EXPECT_EQ(result.config->constraints.max_bytes, size_t{1} << 20);
  EXPECT_EQ(result.config->constraints.compile_time, absl::Milliseconds(500));
  EXPECT_EQ(result.config->constraints.threads, 3);
  EXPECT_EQ(result.config->constraints.max_waiting, 7);
  EXPECT_EQ(result.config->constraints.max_live, 0);
  EXPECT_EQ(result.config->constraints.rule_bytes, size_t{8} << 20);
  EXPECT_EQ(result.config->constraints.cache_bytes, size_t{1} << 30);
}

TEST(ConfigTest, FlagsOfObservabilityAndSecurity) {
  const ConfigResult result = Parse({"--health-listen",
                                     "0.0.0.0:50052",
                                     "--metrics-listen",
                                     "127.0.0.1:0",
                                     "--otlp-endpoint",
                                     "collector:4317",
                                     "--otlp-ca",
                                     "/o",
                                     "--trace-sample-ratio",
                                     "0.25",
                                     "--channelz",
                                     "--tls-cert",
                                     "/c",
                                     "--tls-key",
                                     "/k",
                                     "--tls-client-ca",
                                     "/a",
                                     "--orchestrator-ca",
                                     "/oa",
                                     "--inference-clients",
                                     "r1,r2",
                                     "--control-clients",
                                     "b",
                                     "--token-file",
                                     "/t",
                                     "--model",
                                     "m.gguf",
                                     "--model-sha256",
                                     "ab",
                                     "--require-sha256",
                                     "--max-metadata-bytes",
                                     "2048",
                                     "--max-streams",
                                     "7",
                                     "--max-connections",
                                     "10",
                                     "--max-connection-bytes",
                                     "8MiB",
                                     "--max-transport-bytes",
                                     "1GiB",
                                     "--max-connection-age",
                                     "1h"});
  ASSERT_TRUE(result.config.has_value()) << result.output;
  const WorkerConfig& config = *result.config;
  EXPECT_EQ(config.health_listen, "0.0.0.0:50052");
  EXPECT_EQ(config.metrics_listen, "127.0.0.1:0");
  EXPECT_EQ(config.otlp_endpoint, "collector:4317");
  EXPECT_EQ(config.otlp_ca, "/o");
  EXPECT_EQ(config.trace_sample_ratio, 0.25);
  EXPECT_TRUE(config.channelz);
  EXPECT_EQ(config.tls_cert, "/c");
  EXPECT_EQ(config.tls_key, "/k");
  EXPECT_EQ(config.tls_client_ca, "/a");
  EXPECT_EQ(config.orchestrator_ca, "/oa");
  EXPECT_THAT(config.inference_clients, ElementsAre("r1", "r2"));
  EXPECT_THAT(config.control_clients, ElementsAre("b"));
  EXPECT_EQ(config.token_file, "/t");
  EXPECT_EQ(config.model_sha256, "ab");
  EXPECT_TRUE(config.require_sha256);
  EXPECT_EQ(config.max_metadata_bytes, 2048);
  EXPECT_EQ(config.max_streams, 7);
  EXPECT_EQ(config.max_connections, 10);
  EXPECT_EQ(config.max_connection_bytes, 8 << 20);
  EXPECT_EQ(config.max_transport_bytes, 1 << 30);
  EXPECT_EQ(config.max_connection_age, absl::Hours(1));
}

TEST(ConfigTest, LimitsOfTheTransportHaveRoomForACall) {
  EXPECT_FALSE(Parse({"--max-connection-bytes", "1000"}).config.has_value());
  EXPECT_FALSE(Parse({"--max-transport-bytes", "512KiB"}).config.has_value());
  EXPECT_FALSE(Parse({"--max-connections", "0"}).config.has_value());
}

TEST(ConfigTest, LimitsOfTheTransportHaveRoomForAllThatMayRunOrWait) {
  constexpr int64_t kMiB = 1 << 20;
  const WorkerConfig config = *Parse({}).config;
  EXPECT_EQ(config.max_streams, 640);
  EXPECT_EQ(config.max_connection_bytes, 64 * kMiB);
  EXPECT_EQ(config.max_transport_bytes, 512 * kMiB);
  const WorkerConfig many = *Parse({"--max-seqs", "2000"}).config;
  EXPECT_EQ(many.max_streams, 2384);
  EXPECT_EQ(many.max_connection_bytes, 282 * kMiB);
  EXPECT_EQ(many.max_transport_bytes, 512 * kMiB);
  const WorkerConfig more = *Parse({"--max-streams", "8192"}).config;
  EXPECT_EQ(more.max_connection_bytes, 1024 * kMiB);
  EXPECT_EQ(more.max_transport_bytes, 1024 * kMiB);
  const WorkerConfig given =
      *Parse({"--max-streams", "8192", "--max-connection-bytes", "64MiB"}).config;
  EXPECT_EQ(given.max_connection_bytes, 64 * kMiB);
}

TEST(ConfigTest, RequestsBringNoTemplatesUnlessAllowed) {
  EXPECT_FALSE(Parse({}).config->allow_request_templates);
  EXPECT_TRUE(Parse({"--allow-request-templates"}).config->allow_request_templates);
}

TEST(ConfigTest, FlagsThatAreSwitchesAreVariablesToo) {
  const ConfigResult result = Parse({}, {{"ORCD_CHANNELZ", "true"}, {"ORCD_REQUIRE_SHA256", "1"}});
  ASSERT_TRUE(result.config.has_value()) << result.output;
  EXPECT_TRUE(result.config->channelz);
  EXPECT_TRUE(result.config->require_sha256);
  EXPECT_FALSE(Parse({}, {{"ORCD_CHANNELZ", "false"}}).config->channelz);
}

TEST(ConfigTest, SwitchesThatAreOnCanBeTurnedOffEachWay) {
  EXPECT_TRUE(Parse({}).config->vllm);
  EXPECT_FALSE(Parse({"--no-vllm"}).config->vllm);
  EXPECT_FALSE(Parse({"--vllm=false"}).config->vllm);
  EXPECT_FALSE(Parse({}, {{"ORCD_VLLM", "false"}}).config->vllm);
  EXPECT_FALSE(Parse({"--config", WriteFile("vllm = false\n")}).config->vllm);
  // Flags come before the environment.
  EXPECT_TRUE(Parse({"--vllm"}, {{"ORCD_VLLM", "false"}}).config->vllm);
  EXPECT_FALSE(Parse({"--no-vllm"}, {{"ORCD_VLLM", "true"}}).config->vllm);
  EXPECT_TRUE(Parse({}).config->kserve);
  EXPECT_FALSE(Parse({"--no-kserve"}).config->kserve);
  EXPECT_FALSE(Parse({}, {{"ORCD_KSERVE", "false"}}).config->kserve);
  EXPECT_TRUE(Parse({}).config->file_sampling);
  EXPECT_FALSE(Parse({"--no-file-sampling"}).config->file_sampling);
  EXPECT_FALSE(Parse({}, {{"ORCD_FILE_SAMPLING", "false"}}).config->file_sampling);
}

TEST(ConfigTest, SecurityThatContradictsItselfIsRefused) {
  const std::vector<std::string> cases[] = {
      {"--tls-cert", "/c"},          {"--tls-key", "/k"},
      {"--tls-client-ca", "/a"},     {"--inference-clients", "r"},
      {"--control-clients", "b"},    {"--require-sha256", "--model", "m.gguf"},
      {"--trace-sample-ratio", "2"}, {"--health-listen", "nowhere"},
      {"--otlp-endpoint", "c:0"},    {"--max-streams", "0"}};
  for (const auto& args : cases) {
    const ConfigResult result = Parse(args);
    EXPECT_EQ(result.exit_code, 2) << args[0];
    EXPECT_THAT(result.output, HasSubstr(args[0]));
  }
}

TEST(ConfigTest, OrchestratorsOfBothKindsInTheOrderOfPreference) {
  const ConfigResult result = Parse({"--orchestrator", "http://smg:30000,o:1", "--orchestrator",
                                     "https://[::1]:443/", "--orchestrator-key-file", "/key"});
  ASSERT_TRUE(result.config.has_value()) << result.output;
  EXPECT_THAT(result.config->orchestrators,
              ElementsAre("http://smg:30000", "o:1", "https://[::1]:443/"));
  EXPECT_EQ(result.config->orchestrator_key_file, "/key");
}

TEST(ConfigTest, SmgMustBeAbleToReachTheWorker) {
  const std::vector<std::string> tls = {
      "--orchestrator", "http://smg:1", "--tls-cert", "/c", "--tls-key", "/k"};
  EXPECT_THAT(Parse(tls).output, HasSubstr("plaintext"));
  std::vector<std::string> behind_proxy = tls;
  behind_proxy.insert(behind_proxy.end(), {"--advertise-address", "proxy:1"});
  EXPECT_TRUE(Parse(behind_proxy).config.has_value());
  EXPECT_THAT(Parse({"--orchestrator", "http://smg:1", "--token-file", "/t"}).output,
              HasSubstr("--token-file"));
  EXPECT_TRUE(Parse({"--orchestrator", "http://smg:1", "--token-file", "/t", "--advertise-address",
                     "proxy:1"})
                  .config.has_value());
  EXPECT_THAT(Parse({"--orchestrator", "http://smg:1", "--no-vllm"}).output,
              HasSubstr("--no-vllm"));
  EXPECT_TRUE(Parse({"--orchestrator", "o:1", "--no-vllm"}).config.has_value());
  EXPECT_THAT(Parse({"--orchestrator", "o:1", "--orchestrator-key-file", "/key"}).output,
              HasSubstr("--orchestrator-key-file is for smg"));
}

TEST(ConfigTest, ModelCacheIsTheDefaultModelDir) {
  const ConfigResult result = Parse({}, {{"HOME", "/h"}, {"ORCD_MODEL_CACHE", "/cache"}});
  EXPECT_EQ(result.config->model_dir, "/cache");
}

TEST(ConfigTest, EveryFlag) {
  const ConfigResult result = Parse({"--listen",
                                     "[::]:0",
                                     "--listen-address-file",
                                     "/tmp/a",
                                     "--advertise-address",
                                     "gpu7:9",
                                     "--advertise-host",
                                     "fd00::7",
                                     "--model-dir",
                                     "/m",
                                     "--model",
                                     "a/b.gguf",
                                     "--model-id",
                                     "b",
                                     "--backend",
                                     "cpu",
                                     "--gpu",
                                     "1",
                                     "--kernels",
                                     "portable",
                                     "--threads",
                                     "3",
                                     "--max-seqs",
                                     "4",
                                     "--max-step-tokens",
                                     "64",
                                     "--max-waiting",
                                     "0",
                                     "--max-waiting-tokens",
                                     "5000000000",
                                     "--watchdog",
                                     "90s",
                                     "--null-step",
                                     "5ms",
                                     "--max-context",
                                     "2048",
                                     "--kv-cache-bytes",
                                     "1.5GiB",
                                     "--kv-cache-fraction",
                                     "0.5",
                                     "--state-cache",
                                     "3GiB",
                                     "--kv-type",
                                     "f32",
                                     "--wait",
                                     "block",
                                     "--block-tokens",
                                     "32",
                                     "--orchestrator",
                                     "o1:1",
                                     "--orchestrator",
                                     "o2:2",
                                     "--worker-id",
                                     "w",
                                     "--drain-timeout",
                                     "1m30s",
                                     "--settle",
                                     "250ms",
                                     "--log-format",
                                     "json",
                                     "--log-level",
                                     "warning",
                                     "--max-message-bytes",
                                     "2000000"});
  ASSERT_TRUE(result.config.has_value()) << result.output;
  const WorkerConfig& config = *result.config;
  EXPECT_EQ(config.listen, "[::]:0");
  EXPECT_EQ(config.listen_address_file, "/tmp/a");
  EXPECT_EQ(config.advertise_address, "gpu7:9");
  EXPECT_EQ(config.advertise_host, "fd00::7");
  EXPECT_EQ(config.model_dir, "/m");
  EXPECT_EQ(config.model, "a/b.gguf");
  EXPECT_EQ(config.model_id, "b");
  EXPECT_EQ(config.backend, "cpu");
  EXPECT_EQ(config.gpu, "1");
  EXPECT_EQ(config.kernels, "portable");
  EXPECT_EQ(config.threads, 3);
  EXPECT_EQ(config.max_seqs, 4);
  EXPECT_EQ(config.max_step_tokens, 64);
  EXPECT_EQ(config.max_waiting, 0);
  EXPECT_EQ(config.max_waiting_tokens, 5'000'000'000);
  EXPECT_EQ(config.watchdog, absl::Seconds(90));
  EXPECT_EQ(config.null_step, absl::Milliseconds(5));
  EXPECT_EQ(config.max_context, 2048);
  EXPECT_EQ(config.kv_cache_bytes, 1610612736);
  EXPECT_EQ(config.kv_cache_fraction, 0.5);
  EXPECT_EQ(config.state_cache_bytes, int64_t{3} << 30);
  EXPECT_EQ(config.kv_type, KvType::kF32);
  EXPECT_EQ(config.wait, WaitMode::kBlock);
  EXPECT_EQ(config.block_tokens, 32);
  EXPECT_THAT(config.orchestrators, ElementsAre("o1:1", "o2:2"));
  EXPECT_EQ(config.worker_id, "w");
  EXPECT_EQ(config.drain_timeout, absl::Seconds(90));
  EXPECT_EQ(config.settle, absl::Milliseconds(250));
  EXPECT_EQ(config.log_format, LogFormat::kJson);
  EXPECT_EQ(config.log_level, LogLevel::kWarning);
  EXPECT_EQ(config.max_message_bytes, 2000000);
}

TEST(ConfigTest, FlagsThenEnvironmentThenFile) {
  const std::string path = WriteFile(
      "threads = 1\nmax-seqs = 1\nmax-waiting = 1\norchestrator = [\"file:1\", \"file:2\"]\n");
  const Environment environment = {
      {"ORCD_CONFIG", path}, {"ORCD_THREADS", "2"}, {"ORCD_MAX_SEQS", "2"}};
  const ConfigResult result = Parse({"--threads=3"}, environment);
  ASSERT_TRUE(result.config.has_value()) << result.output;
  EXPECT_EQ(result.config->threads, 3);
  EXPECT_EQ(result.config->max_seqs, 2);
  EXPECT_EQ(result.config->max_waiting, 1);
  EXPECT_THAT(result.config->orchestrators, ElementsAre("file:1", "file:2"));
  unlink(path.c_str());
}

TEST(ConfigTest, RopeScalingIsShortOrTheJsonOfAModelCard) {
  EXPECT_FALSE(Parse({}).config->rope_scaling.has_value());
  const ConfigResult brief = Parse({"--rope-scaling=yarn:4:32768"});
  ASSERT_TRUE(brief.config.has_value()) << brief.output;
  const RopeOverride expected = {.factor = 4, .original_context = 32'768};
  EXPECT_EQ(brief.config->rope_scaling, expected);
  const std::string json =
      R"({"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768})";
  const ConfigResult card = Parse({"--rope-scaling", json});
  ASSERT_TRUE(card.config.has_value()) << card.output;
  EXPECT_EQ(card.config->rope_scaling, expected);
  const ConfigResult variable = Parse({}, {{"ORCD_ROPE_SCALING", json}});
  ASSERT_TRUE(variable.config.has_value()) << variable.output;
  EXPECT_EQ(variable.config->rope_scaling, expected);
  const ConfigResult wrong = Parse({"--rope-scaling=linear:4"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.output, AllOf(HasSubstr("--rope-scaling"), HasSubstr("yarn:FACTOR")));
}

TEST(ConfigTest, TheDrafterIsNoneANameOrAFile) {
  EXPECT_EQ(Parse({}).config->draft, "none");
  EXPECT_FALSE(Parse({}).config->drafts_with_model());
  EXPECT_EQ(Parse({"--draft", "ngram"}).config->draft, "ngram");
  EXPECT_FALSE(Parse({"--draft", "ngram"}).config->drafts_with_model());
  EXPECT_FALSE(Parse({"--draft", "mtp"}).config->drafts_with_model());
  EXPECT_EQ(Parse({"--draft", "ngram"}).config->draft_tokens, 0);
  EXPECT_EQ(Parse({"--draft", "ngram", "--draft-tokens", "16"}).config->draft_tokens, 16);
  const ConfigResult file = Parse(
      {"--draft", "small/d.gguf", "--draft-sha256", std::string(64, 'A'), "--require-sha256"});
  ASSERT_TRUE(file.config.has_value()) << file.output;
  EXPECT_EQ(file.config->draft, "small/d.gguf");
  EXPECT_TRUE(file.config->drafts_with_model());
  EXPECT_EQ(file.config->draft_sha256, std::string(64, 'A'));
  EXPECT_TRUE(Parse({"--require-sha256", "--draft", "ngram"}).config.has_value());
  EXPECT_EQ(Parse({}, {{"ORCD_DRAFT", "ngram"}}).config->draft, "ngram");
}

TEST(ConfigTest, AFlagWithoutItsValueTakesNoVariableForIt) {
  EXPECT_EQ(Parse({"--model"}, {{"ORCD_MODEL_DIR", "/x"}}).exit_code, 2);
}

TEST(ConfigTest, AStepHasRoomForEveryRequest) {
  // Without --max-seqs the backend runs as many sequences as a step has room for.
  EXPECT_TRUE(Parse({"--max-step-tokens=1"}).config.has_value());
  EXPECT_TRUE(Parse({"--max-step-tokens=16", "--max-seqs=16"}).config.has_value());
  const ConfigResult result = Parse({"--max-step-tokens=15", "--max-seqs=16"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.output, AllOf(HasSubstr("--max-step-tokens"), HasSubstr("--max-seqs 16")));
}

TEST(ConfigTest, ListsInTheEnvironmentAreSeparatedByCommas) {
  const Environment environment = {{"ORCD_ORCHESTRATOR", "a:1,b:2"}};
  EXPECT_THAT(Parse({}, environment).config->orchestrators, ElementsAre("a:1", "b:2"));
  EXPECT_THAT(Parse({"--orchestrator", "c:3"}, environment).config->orchestrators,
              ElementsAre("c:3"));
}

TEST(ConfigTest, EmptyVariablesAreUnset) {
  EXPECT_EQ(Parse({}, {{"ORCD_THREADS", ""}}).config->threads, 0);
}

TEST(ConfigTest, SaysWhatIsWrong) {
  const std::string unknown_key = WriteFile("treads = 1\n");
  struct Case {
    std::vector<std::string> args;
    std::string message;
  };
  const Case cases[] = {
      {{"--listen", "localhost"}, "'localhost' is not host:port: it has no port"},
      {{"--listen", "127.0.0.1: 0"}, "byte 11 is a blank"},
      {{"--listen", "::1:50051"}, "--listen: '::1:50051' is not host:port: an IPv6 address needs"},
      {{"--health-listen", "::1:50051"}, "an IPv6 address needs brackets"},
      {{"--metrics-listen", "0.0.0.0:99999"}, "its port is out of range"},
      {{"--advertise-address", "fd00::1:50051"}, "an IPv6 address needs brackets"},
      {{"--advertise-address", "gpu7"}, "it has no port"},
      {{"--advertise-host", "gpu7:1"}, "'gpu7:1' is not a host: it has a port"},
      {{"--otlp-endpoint", "collector :4317"}, "byte 10 is a blank"},
      {{"--orchestrator", "fd00::1:50051"}, "an IPv6 address needs brackets"},
      {{"--orchestrator", "http://fd00::1:50051"}, "an IPv6 address needs brackets"},
      {{"--listen", "localhost:70000"}, "'localhost:70000' is not host:port"},
      {{"--listen", ":80"}, "':80' is not host:port"},
      {{"--orchestrator", "o:0"}, "port of 1 to 65535"},
      {{"--orchestrator", "http://smg"}, "'http://smg' is not http://host:port"},
      {{"--orchestrator", "http://smg:1/v1"}, "'http://smg:1/v1' is not http://host:port"},
      {{"--orchestrator", "grpc://o:1"}, "'grpc://o:1' is neither host:port"},
      {{"--threads", "many"}, "--threads"},
      {{"--threads", "-1"}, "--threads"},
      {{"--max-seqs", "-1"}, "--max-seqs"},
      {{"--gpu", "-1"}, "--gpu: '-1' is no index from 0 to 63"},
      {{"--gpu", "64"}, "--gpu"},
      {{"--gpu", "GPU-"}, "--gpu"},
      {{"--gpu", "GPU-xyz"}, "--gpu: 'GPU-xyz' is no index from 0 to 63 and no UUID such as"},
      {{"--gpu", "5c5ac5b2"}, "--gpu"},
      {{"--kernels", "sm80"}, "--kernels"},
      {{"--kv-cache-fraction", "1.5"}, "--kv-cache-fraction"},
      {{"--kv-cache-bytes", "2 buckets"}, "'2 buckets' is not a number of bytes, such as 2GiB"},
      {{"--kv-cache-bytes", "-5"}, "'-5' is not a number of bytes"},
      {{"--state-cache", "some"}, "'some' is not a number of bytes"},
      {{"--kv-cache-bytes", "99999999TiB"}, "is not a number of bytes"},
      {{"--kv-cache-bytes", "0.5"}, "it is less than one byte"},
      {{"--constraint-max-bytes", "2MiB"}, "is not a number of bytes of 1 to 1MiB"},
      {{"--constraint-max-bytes", "0"}, "is not a number of bytes of 1 to 1MiB"},
      {{"--constraint-max-live", "-1"}, "--constraint-max-live"},
      {{"--constraint-compile-time", "0.5"}, "is not a duration"},
      {{"--kv-cache-fraction", "nan"}, "--kv-cache-fraction: 'nan' is not a number of 0 to 1"},
      {{"--trace-sample-ratio", "nan"}, "--trace-sample-ratio: 'nan' is not a number of 0 to 1"},
      {{"--trace-sample-ratio", "inf"}, "'inf' is not a number of 0 to 1"},
      {{"--worker-id", "w1\n"}, "--worker-id: must be at most 256 bytes of UTF-8 without control"},
      {{"--worker-id", "w\xE9"}, "bytes that are not UTF-8"},
      {{"--draft", "d.gguf", "--draft-sha256", "abc"}, "'abc' is not 64 hex digits"},
      {{"--draft-tokens", "17"}, "--draft-tokens"},
      {{"--draft", "ngram", "--draft-sha256", std::string(64, 'a')}, "--draft names none"},
      {{"--draft", "mtp", "--draft-sha256", std::string(64, 'a')}, "--draft names none"},
      {{"--draft", "d.gguf", "--require-sha256"}, "--require-sha256 needs --draft-sha256"},
      {{"--kv-type", "q8"}, "--kv-type"},
      {{"--wait", "sleep"}, "--wait"},
      {{"--backend", "tpu"}, "--backend"},
      {{"--drain-timeout", "30"}, "'30' is not a duration"},
      {{"--drain-timeout", "-1s"}, "'-1s' is not a duration"},
      {{"--settle", "inf"}, "'inf' is not a duration"},
      {{"--no-such-flag"}, "--no-such-flag"},
      {{"stray"}, "stray"},
      {{"--config", "/nowhere/at/all"}, "--config: /nowhere/at/all"},
      {{"--config", unknown_key},
       ", line 1: there is no setting 'treads'; is it meant to be threads?"},
  };
  for (const Case& c : cases) {
    const ConfigResult result = Parse(c.args);
    EXPECT_FALSE(result.config.has_value()) << c.args[0];
    EXPECT_EQ(result.exit_code, 2) << c.args[0];
    EXPECT_THAT(result.output, HasSubstr(c.message));
  }
  unlink(unknown_key.c_str());
}

TEST(ConfigTest, BadVariablesAreNamedWithTheirFlag) {
  const ConfigResult result = Parse({}, {{"ORCD_MAX_SEQS", "none"}});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("the variable ORCD_MAX_SEQS: "), HasSubstr("--max-seqs")));
  // A flag decides, and nobody reads the variable then.
  EXPECT_TRUE(Parse({"--max-seqs=1"}, {{"ORCD_MAX_SEQS", "none"}}).config.has_value());
}

TEST(ConfigTest, BlanksAroundVariablesDoNotCount) {
  const ConfigResult result = Parse({}, {{"ORCD_MAX_SEQS", "3 "},
                                         {"ORCD_WORKER_ID", "w1\n"},
                                         {"ORCD_LISTEN", "\t[::]:0"},
                                         {"ORCD_KV_CACHE_BYTES", " 512Mi\r\n"},
                                         {"ORCD_KV_CACHE_FRACTION", " 0.5"},
                                         {"ORCD_VLLM", "false "},
                                         {"ORCD_DRAIN_TIMEOUT", " 5s "},
                                         {"ORCD_ORCHESTRATOR", " a:1 , b:2,\n"},
                                         {"ORCD_THREADS", "  "}});
  ASSERT_TRUE(result.config.has_value()) << result.output;
  EXPECT_EQ(result.config->max_seqs, 3);
  EXPECT_EQ(result.config->worker_id, "w1");
  EXPECT_EQ(result.config->listen, "[::]:0");
  EXPECT_EQ(result.config->kv_cache_bytes, 512 << 20);
  EXPECT_EQ(result.config->kv_cache_fraction, 0.5);
  EXPECT_FALSE(result.config->vllm);
  EXPECT_EQ(result.config->drain_timeout, absl::Seconds(5));
  EXPECT_THAT(result.config->orchestrators, ElementsAre("a:1", "b:2"));
  EXPECT_EQ(result.config->threads, 0);
}

TEST(ConfigTest, VariablesThatAreNoSettingsWarn) {
  const ConfigResult result =
      Parse({}, {{"ORCD_MAX_SEQ", "3"}, {"ORCD_ADDRESS", "a:1"}, {"ORCD_CONFIG", ""}});
  ASSERT_TRUE(result.config.has_value()) << result.output;
  EXPECT_THAT(result.warnings,
              ElementsAre(AllOf(HasSubstr("ORCD_MAX_SEQ "), HasSubstr("ORCD_MAX_SEQS?"))));
}

TEST(ConfigTest, TheFileIsReadAsItsFormatsAre) {
  const std::string good = WriteFile(
      "\xEF\xBB\xBFworker-id = \"a#b\"  # a comment\n"
      "model-dir = '/srv/models#1'\n"
      "no-vllm\n"
      "listen = 0.0.0.0:50051\n"
      "inference-clients = [\n  \"a\",\n  \"b\" # the second\n]\n"
      "orchestrator = \"o:1\"\n"
      "orchestrator = \"o:2\"\n"
      "otlp-ca = \"\"\n"
      "kv-cache-bytes = \"2 Gi\"\n"
      "kserve = false\n"
      "tls-cert = c\ntls-key = k\ntls-client-ca = a\n");
  const ConfigResult result = Parse({"--config", good});
  ASSERT_TRUE(result.config.has_value()) << result.output;
  EXPECT_EQ(result.config->worker_id, "a#b");
  EXPECT_EQ(result.config->model_dir, "/srv/models#1");
  EXPECT_FALSE(result.config->is_default_model_dir);
  EXPECT_FALSE(result.config->vllm);
  EXPECT_FALSE(result.config->kserve);
  EXPECT_EQ(result.config->listen, "0.0.0.0:50051");
  EXPECT_THAT(result.config->inference_clients, ElementsAre("a", "b"));
  EXPECT_THAT(result.config->orchestrators, ElementsAre("o:1", "o:2"));
  EXPECT_EQ(result.config->otlp_ca, "");
  EXPECT_EQ(result.config->kv_cache_bytes, int64_t{2} << 30);
  EXPECT_EQ(result.config->tls_client_ca, "a");
  EXPECT_TRUE(Parse({}).config->is_default_model_dir);
  unlink(good.c_str());
}

TEST(ConfigTest, TheFileOfTheDocumentationIsRight) {
  std::ifstream page("docs/configuration.md");
  std::string content;
  int fences = 0;
  // Take the second fenced block.
  for (std::string line; std::getline(page, line);) {
    if (line == "```") {
      ++fences;
    } else if (fences == 3) {
      absl::StrAppend(&content, line, "\n");
    }
  }
  const std::string path = WriteFile(content);
  const ConfigResult result = Parse({"--config", path});
  ASSERT_TRUE(result.config.has_value()) << result.output;
  EXPECT_EQ(result.config->max_seqs, 32);
  EXPECT_EQ(result.config->worker_id, "gpu#7");
  EXPECT_EQ(result.config->listen, "0.0.0.0:50051");
  EXPECT_EQ(result.config->metrics_listen, "[::]:9400");
  EXPECT_THAT(result.config->orchestrators, ElementsAre("o1:1", "o2:2"));
  EXPECT_TRUE(result.config->channelz);
  EXPECT_FALSE(result.config->vllm);
  unlink(path.c_str());
}

TEST(ConfigTest, ErrorsOfTheFileNameItAndTheLine) {
  struct Case {
    const char* content;
    int line;
    const char* message;
  };
  for (const Case& c :
       {Case{"\nmax-seqs = 3\nmax-seq = 3\n", 3, "there is no setting 'max-seq'; is "},
        Case{"config = x\n", 1, "leave 'config' out"},
        Case{"version\n", 1, "there is no setting 'version'"},
        Case{"\n\nmax-seqs = many\n", 3, "--max-seqs"},
        Case{"threads = 1\nkv-cache-bytes = 2 Gi\n", 2, "takes one value and has 2"},
        Case{"# c\nkv-cache-bytes = 0.5\n", 2, "it is less than one byte"},
        Case{"trace-sample-ratio = nan\n", 1, "'nan' is not a number of 0 to 1"},
        Case{"listen = [::1]:0\n", 1, "a value that begins with '[' needs quotes"},
        Case{"listen = \"::1:0\"\n", 1, "an IPv6 address needs brackets"},
        Case{"orchestrator = a:1\norchestrator = b\n", 1, "'b' is not host:port"},
        Case{"vllm = maybe\n", 1, "vllm"},
        Case{"worker-id = \"a\\nb\"\n", 1, "a control character at byte 2"},
        Case{"model = \"x\n", 1, "a quote (\") is not closed"}}) {
    const std::string path = WriteFile(c.content);
    const ConfigResult result = Parse({"--config", path});
    EXPECT_EQ(result.exit_code, 2) << c.content;
    EXPECT_THAT(result.output, AllOf(HasSubstr(absl::StrCat(path, ", line ", c.line, ": ")),
                                     HasSubstr(c.message)));
    unlink(path.c_str());
  }
}

TEST(ConfigTest, HelpAndVersion) {
  const ConfigResult help = Parse({"--help"});
  EXPECT_FALSE(help.config.has_value());
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.output, HasSubstr("--kv-cache-bytes"));
  EXPECT_THAT(help.output, HasSubstr("Exit status: 0 drained"));
  const ConfigResult version = Parse({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.output, ::testing::MatchesRegex("worker-orcd [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

}  // namespace
}  // namespace orcd
