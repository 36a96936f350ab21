// halftone generate --prompts as a user runs it: alone and with others, interrupted and again.
#include <sys/resource.h>

#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "halftone/engine/offline_shares.h"
#include "halftone/io/png.h"
#include "halftone/io/safetensors_file.h"
#include "tests/cli/process.h"
#include "tests/support/procedural.h"
#include "tests/support/sanitizers.h"
#include "tests/support/tiny_folder.h"
#include "tests/support/tiny_zimage.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Cli;
using test::expect_one_line;
using test::Result;
using testing::HasSubstr;

using Files = std::map<std::string, std::string>;

class CliOffline : public Cli {
 protected:
  void SetUp() override {
    const fs::path data = HALFTONE_TEST_DATA;
    const SafetensorsFile fixture(data / "zimage" / "pipeline_guided.safetensors");
    const json description = json::parse(fixture.metadata().at("case"));
    test::write_zimage_folder(dir_ / "model", description, data / "tokenizer" / "tokenizer.json");
    const int64_t dim = description["transformer"]["dim"];
    const std::string module = "diffusion_model.layers.0.attention.qkv.";
    write_safetensors(path("style.safetensors"),
                      {{module + "lora_down.weight", test::procedural_weight("a", {4, dim})},
                       {module + "lora_up.weight", test::procedural_weight("b", {3 * dim, 4})}});
  }

  // Of little work, unless these say otherwise.
  std::vector<std::string> arguments(const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"generate", "--model", path("model")};
    const std::pair<const char*, const char*> usual[] = {{"--size", "24x16"}, {"--steps", "2"}};
    for (const auto& [flag, value] : usual) {
      if (std::ranges::count(more, flag) == 0) all.insert(all.end(), {flag, value});
    }
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::vector<std::string> offline(const std::string& folder,
                                   std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--prompts", path("list.jsonl"), "-o", path(folder)});
    return arguments(more);
  }
  json report(const std::string& folder, std::vector<std::string> more = {}) {
    more.emplace_back("--json");
    const Result result = run(offline(folder, more));
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    return json::parse(result.out);
  }
  void write_list(const std::string& text) const { test::write_file(dir_ / "list.jsonl", text); }
  // A line each of several kinds.
  void write_kinds() const {
    write_list(R"({"prompt": "a cat", "id": "cat", "seed": 3})"
               "\n\n"
               R"({"prompt": "a dog", "count": 2, "steps": 3, "seed": 18446744073709551615})"
               "\r\n"
               R"({"prompt": "a hut", "guidance": 2.5, "negative": "blur", "size": "16x16"})"
               "\n"
               R"({"prompt": "a fox", "id": 7, "width": 16, "scheduler": "unipc", "loras": [)"
               R"({"name": ")" +
               path("style.safetensors") + R"(", "strength": 0.5}]})" + "\n");
  }
  Files files_in(const std::string& folder) const {
    Files files;
    for (const auto& entry : fs::directory_iterator(dir_ / folder)) {
      files[entry.path().filename().string()] = test::read_file(entry.path());
    }
    return files;
  }
  std::vector<json> index_of(const std::string& folder) const {
    std::vector<json> entries;
    std::istringstream text(test::read_file(dir_ / folder / "index.jsonl"));
    for (std::string line; std::getline(text, line);) entries.push_back(json::parse(line));
    return entries;
  }
  std::string single(std::vector<std::string> more) {
    more.insert(more.end(), {"-o", path("single.png")});
    const Result result = run(arguments(more));
    EXPECT_EQ(result.code, 0) << result.err;
    return test::read_file(dir_ / "single.png");
  }
  // Until there are so many pictures.
  bool wait_for(const std::string& folder, int count) const {
    for (int i = 0; i < 6000; ++i) {
      int there = 0;
      std::error_code failed;
      for (const auto& entry : fs::directory_iterator(dir_ / folder, failed)) {
        there += entry.path().extension() == ".png" ? 1 : 0;
      }
      if (!failed && there >= count) return true;
      ::usleep(10000);
    }
    return false;
  }
};

TEST_F(CliOffline, PicturesAreThoseOfSingleRunsWhateverTheBatch) {
  write_kinds();
  const json told = report("out", {"--batch", "3"});
  EXPECT_EQ(told["pictures"], 5);
  EXPECT_EQ(told["made"], 5);
  const Files files = files_in("out");
  ASSERT_EQ(files.size(), 6u);
  EXPECT_EQ(files.at("cat.png"), single({"a cat", "--seed", "3"}));
  EXPECT_EQ(files.at("000003-1.png"),
            single({"a dog", "--steps", "3", "--seed", "18446744073709551615"}));
  EXPECT_EQ(files.at("000003-2.png"), single({"a dog", "--steps", "3", "--seed", "0"}));
  EXPECT_EQ(files.at("000004.png"),
            single({"a hut", "--guidance", "2.5", "--negative", "blur", "--size", "16x16"}));
  EXPECT_EQ(files.at("7.png"), single({"a fox", "--size", "16x16", "--scheduler", "unipc", "--lora",
                                       path("style.safetensors") + ":0.5"}));
  const std::vector<json> index = index_of("out");
  ASSERT_EQ(index.size(), 5u);
  EXPECT_EQ(index[0]["file"], "cat.png");
  EXPECT_EQ(index[1]["line"], 3);
  EXPECT_EQ(index[2]["seed"], 0);
  EXPECT_EQ(index[3]["guidance"], 2.5);
  EXPECT_EQ(index[4]["loras"][0]["strength"], 0.5);
  EXPECT_EQ(index[4]["size"], "16x16");
  report("one", {"--batch", "1"});
  EXPECT_EQ(files_in("one"), files);
}

TEST_F(CliOffline, WhatIsThereIsKeptUnlessItsLineHasChanged) {
  const std::string first = R"({"prompt": "a cat", "id": "cat"})", second = R"({"prompt": "b"})";
  write_list(first + "\n" + second + "\n");
  report("out");
  const auto written = [&](const char* file) { return fs::last_write_time(dir_ / "out" / file); };
  const auto cat = written("cat.png"), other = written("000002.png");
  json again = report("out");
  EXPECT_EQ(again["made"], 0);
  EXPECT_EQ(again["kept"], 2);
  EXPECT_EQ(written("cat.png"), cat);

  write_list(first +
             "\n"
             R"({"prompt": "c", "scheduler": "dpm++-2m"})"
             "\n");
  again = report("out");
  EXPECT_EQ(again["made"], 1);
  EXPECT_EQ(again["made_again"],
            json::parse(R"([{"line":2,"file":"000002.png","why":"its prompt was 'b'"}])"));
  EXPECT_NE(written("000002.png"), other);
  EXPECT_EQ(written("cat.png"), cat);
  // The schedule is in no entry of its own.
  write_list(first +
             "\n"
             R"({"prompt": "c"})"
             "\n");
  EXPECT_EQ(report("out")["made_again"][0]["why"],
            "its schedule, adapters or configurations were others");

  const std::string whole = test::read_file(dir_ / "out" / "cat.png");
  test::write_file(dir_ / "out" / "cat.png", whole.substr(0, whole.size() / 2));
  fs::remove(dir_ / "out" / "000002.png");
  const Result result = run(offline("out"));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("2 of 2 pictures made, 0 were there"));
  EXPECT_THAT(result.out, HasSubstr("made again: cat.png: PNG: it does not end as it should"));
  EXPECT_EQ(test::read_file(dir_ / "out" / "cat.png"), whole);
  EXPECT_EQ(report("out", {"--overwrite"})["made"], 2);
  report("fresh");
  EXPECT_EQ(files_in("out"), files_in("fresh"));
}

// Weights are not all that a picture follows from.
TEST_F(CliOffline, AChangedConfigurationMakesPicturesAgain) {
  write_list(R"({"prompt": "a cat"})"
             "\n");
  report("out");
  const std::string before = test::read_file(dir_ / "out" / "000001.png");
  const fs::path file = dir_ / "model" / "vae" / "config.json";
  json config = json::parse(test::read_file(file));
  config["scaling_factor"] = config["scaling_factor"].get<double>() * 1.5;
  test::write_file(file, config.dump());
  const json again = report("out");
  EXPECT_EQ(again["made"], 1);
  EXPECT_EQ(again["made_again"][0]["why"], "its schedule, adapters or configurations were others");
  EXPECT_NE(test::read_file(dir_ / "out" / "000001.png"), before);
  // What the folder recommends is in the request already.
  test::write_file(dir_ / "model" / "halftone.json", R"({"guidance": 2})");
  EXPECT_EQ(report("out", {"--guidance", "0"})["kept"], 1);
}

TEST_F(CliOffline, FilesAndTheIndexSayWhichStepsWereReused) {
  write_list(R"({"prompt": "a cat", "cache": 1, "steps": 6})"
             "\n"
             R"({"prompt": "a cat", "steps": 6})"
             "\n");
  report("out");
  const auto lines = [&] {
    std::vector<json> found;
    std::istringstream all(test::read_file(dir_ / "out" / "index.jsonl"));
    for (std::string line; std::getline(all, line);) found.push_back(json::parse(line));
    return found;
  };
  const json reused = lines()[0]["reused_steps"];
  EXPECT_GT(reused.size(), 1u);
  EXPECT_FALSE(lines()[1].contains("reused_steps"));
  // The same of a picture that is kept.
  fs::remove(dir_ / "out" / "index.jsonl");
  EXPECT_EQ(report("out")["kept"], 2);
  EXPECT_EQ(lines()[0]["reused_steps"], reused);
}

TEST_F(CliOffline, KilledAtAnyMomentItGoesOnToTheSameFiles) {
  std::string list;
  for (int i = 0; i < 6; ++i)
    list += fmt::format("{{\"prompt\": \"cat {}\", \"seed\": {}}}\n", i, i);
  write_list(list);
  const auto into = [&](const std::string& folder) {
    return offline(folder, {"--steps", "6", "--threads", "1", "--batch", "2"});
  };
  ASSERT_EQ(run(into("whole")).code, 0);
  const Files whole = files_in("whole");
  ASSERT_EQ(whole.size(), 7u);
  for (const int after : {0, 1, 3}) {
    SCOPED_TRACE(after);
    const std::string folder = fmt::format("killed{}", after);
    const pid_t child = start(into(folder), dir_ / "stdout.txt", dir_ / "stderr.txt");
    ASSERT_TRUE(wait_for(folder, after));
    ::kill(child, SIGKILL);
    EXPECT_EQ(finished(child).code, -SIGKILL);
    for (const auto& [name, bytes] : files_in(folder)) {
      if (name.ends_with(".png")) {
        EXPECT_EQ(bytes, whole.at(name)) << name;
      }
    }
    const Result rest = run(into(folder));
    ASSERT_EQ(rest.code, 0) << rest.err;
    EXPECT_EQ(files_in(folder), whole);
  }
}

TEST_F(CliOffline, CtrlCKeepsWhatIsFinished) {
  std::string list = R"({"prompt": "a cat"})"
                     "\n";
  for (int i = 0; i < 4; ++i)
    list += R"({"prompt": "a dog", "steps": 1000, "size": "96x96"})"
            "\n";
  write_list(list);
  const pid_t child =
      start(offline("out", {"--threads", "1"}), dir_ / "stdout.txt", dir_ / "stderr.txt");
  ASSERT_TRUE(wait_for("out", 1));
  ::kill(child, SIGINT);
  expect_one_line(finished(child), 130, "interrupted; 1 of 5 pictures are there");
  ASSERT_EQ(index_of("out").size(), 1u);
  EXPECT_EQ(index_of("out")[0]["file"], "000001.png");
}

TEST_F(CliOffline, WrongLinesAreNamedBeforeAnythingIsMade) {
  const std::pair<std::string, const char*> cases[] = {
      {R"({"prompt": "x", "steps": 0})", "line 2: 'steps' 0 is not in 1 .. 1000"},
      {R"({"prompt": "x", "steps": "4"})", "line 2: 'steps' is not an integer"},
      {R"({"negative": "x"})", "line 2: 'prompt' is missing"},
      {R"({"prompt": "x", "promt": "y"})", "line 2: 'promt' is not known"},
      {R"({"prompt": "x", "size": "big"})", "line 2: size: 'big' is not WIDTHxHEIGHT"},
      {R"({"prompt": "x", "size": "25x16"})", "line 2: size: 25x16 is not allowed"},
      {R"({"prompt": "x", "size": "16x16", "width": 16})", "line 2: size: and width or height"},
      {R"({"prompt": "x", "negative": "y"})", "line 2: negative: does nothing without guidance"},
      {R"({"prompt": "x", "guidance": 101})", "line 2: 'guidance' 101 is not in 0 .. 100"},
      {R"({"prompt": "x", "seed": -1})", "line 2: 'seed' is not a whole number from 0"},
      {R"({"prompt": "x", "count": 0})", "line 2: 'count' 0 is not in 1 .. 10000"},
      {R"({"prompt": "x", "skip_layer_scale": 3})", "line 2: skip_layer_scale: does nothing"},
      {R"({"prompt": "x", "scheduler": "heun"})", "line 2: scheduler: "},
      {R"({"prompt": "x", "loras": ["none"]})", "line 2: loras: there is no 'none'"},
      {R"({"prompt": "x", "model": "y"})", "line 2: model: is the same for all lines"},
      {R"({"prompt": "x", "id": "../y"})", "line 2: id: "},
      {R"({"prompt": "x", "id": "a/b"})", "line 2: id: 'a/b' holds what no name may hold"},
      {R"({"prompt": "x", "id": ""})", "line 2: id: is empty"},
      {R"({"prompt": "x", "id": "000001"})", "line 2: id: line 1 makes 000001.png already"},
      {R"({"prompt": ")" + std::string(3000, 'z') + "\"}", "line 2: prompt: "},
      {R"({"prompt": "x\u0000y"})", "line 2: prompt: holds NUL"},
      {R"({"prompt": "x")", "line 2: "},
      {"\"x\"", "line 2: is not a JSON object"},
      {"{\"prompt\": \"\xFF\"}", "line 2: is not UTF-8"},
  };
  for (const auto& [line, reason] : cases) {
    SCOPED_TRACE(line.substr(0, 60));
    write_list(R"({"prompt": "fine"})"
               "\n" +
               line + "\n");
    expect_one_line(run(offline("out")), 1, path("list.jsonl") + ": " + reason);
    EXPECT_TRUE(files_in("out").empty());
  }
  write_list("{}\n{}\n{}\n");
  expect_one_line(run(offline("out")), 1, "'prompt' is missing (and 2 more lines are wrong)");
  write_list("\n");
  expect_one_line(run(offline("out")), 1, "list.jsonl: holds no prompt");
}

// Each line's picture is that of a run with the flags of the same names, and no other's.
TEST_F(CliOffline, LinesTellOfSizesAndOfEmptyNegativePrompts) {
  fs::remove_all(dir_ / "model");
  test::write_tiny_folder(dir_ / "model", "sdxl", "base");
  const std::pair<const char*, std::vector<std::string>> kinds[] = {
      {R"({"prompt": "a cat"})", {}},
      {R"({"prompt": "a cat", "original_size": "64x40"})", {"--original-size", "64x40"}},
      {R"({"prompt": "a cat", "crop": "8,16"})", {"--crop", "8,16"}},
      {R"({"prompt": "a cat", "original_size": "64x40", "crop": "8,16"})",
       {"--original-size", "64x40", "--crop", "8,16"}},
      {R"({"prompt": "a cat", "negative": ""})", {"--negative", ""}},
  };
  std::string list;
  for (const auto& [line, flags] : kinds) list += line + std::string("\n");
  write_list(list);
  const json made = report("out");
  EXPECT_EQ(made["made"], 5);
  const Files files = files_in("out");
  const std::vector<json> index = index_of("out");
  std::set<std::string> different;
  for (size_t i = 0; i < std::size(kinds); ++i) {
    std::vector<std::string> flags = kinds[i].second;
    flags.insert(flags.end(), {"a cat", "--json", "-o", path("single.png")});
    const Result alone = run(arguments(flags));
    ASSERT_EQ(alone.code, 0) << alone.err;
    const std::string picture = files.at(fmt::format("{:06}.png", i + 1));
    EXPECT_EQ(test::read_file(dir_ / "single.png"), picture) << kinds[i].first;
    different.insert(picture);
    const json told = json::parse(alone.out), line = json::parse(kinds[i].first);
    EXPECT_EQ(told["original_size"], line.value("original_size", "24x16"));
    EXPECT_EQ(told["crop"], line.value("crop", "0,0"));
    EXPECT_EQ(told["negative"], line.value("negative", json()));
    EXPECT_EQ(index[i]["negative"], line.value("negative", json()));
    EXPECT_EQ(index[i].contains("crop"), line.contains("crop") || line.contains("original_size"));
  }
  EXPECT_EQ(different.size(), 5u);
  // Kept, as it was made from the same.
  EXPECT_EQ(report("out")["kept"], 5);
  // The flags are for lines that say nothing.
  write_list(std::string(kinds[1].first) + "\n");
  report("flagged", {"--crop", "8,16"});
  EXPECT_EQ(files_in("flagged").at("000001.png"), files.at("000004.png"));
  write_list(R"({"prompt": "x", "crop": "8"})"
             "\n");
  expect_one_line(run(offline("wrong")), 1, "line 1: crop: '8' is not LEFT,TOP in pixels");
}

TEST_F(CliOffline, FlagsThatDoNotGoTogetherAreRefused) {
  write_list(R"({"prompt": "x"})"
             "\n");
  expect_one_line(run(offline("out", {"a prompt"})), 2, "--prompt: does not go with --prompts");
  expect_one_line(run(arguments({"--prompts", path("list.jsonl")})), 2, "--output: a folder");
  expect_one_line(run(arguments({"x", "--overwrite"})), 2, "--overwrite: goes with --prompts");
  expect_one_line(run(arguments({"--prompts", path("none"), "-o", path("out")})), 1,
                  "none: no such");
  test::write_file(dir_ / "taken", "");
  expect_one_line(run(offline("taken")), 1, "taken: ");
  const Result lora = run(offline("out", {"--lora", path("list.jsonl")}));
  EXPECT_EQ(lora.code, 1);
  EXPECT_THAT(lora.err, HasSubstr("list.jsonl"));
}

TEST_F(CliOffline, OthersAreMadeWhereALineIsWrongOrFails) {
  const Result small = run(arguments({"a cat", "-o", path("cat.png"), "--json"}));
  const int64_t needed = json::parse(small.out)["peak_bytes"]["planned"];
  write_list(R"({"prompt": "a cat"})"
             "\n"
             R"({"prompt": "x", "steps": -1, "id": "few"})"
             "\n"
             R"({"prompt": "a dog", "size": "256x256"})"
             "\n"
             R"({"prompt": "a fox"})"
             "\n");
  const Result result = run(offline("out", {"--skip-wrong", "--batch", "4", "--max-memory",
                                            std::to_string(needed + (int64_t{6} << 20))}));
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("2 of 4 pictures could not be made (line 2: 'steps' -1"));
  const std::vector<json> index = index_of("out");
  ASSERT_EQ(index.size(), 4u);
  EXPECT_EQ(index[0]["file"], "000001.png");
  EXPECT_EQ(index[1]["id"], "few");
  EXPECT_THAT(index[1]["error"].get<std::string>(), HasSubstr("'steps' -1 is not in"));
  EXPECT_THAT(index[2]["error"].get<std::string>(),
              HasSubstr("a smaller size or batch needs less"));
  EXPECT_EQ(index[2]["prompt"], "a dog");
  EXPECT_FALSE(index[2].contains("file"));
  EXPECT_EQ(index[3]["file"], "000004.png");
  EXPECT_EQ(files_in("out").size(), 3u);
}

TEST_F(CliOffline, ATextFileHoldsAPromptALine) {
  test::write_file(dir_ / "list.txt",
                   "\xEF\xBB\xBF"
                   "a cat\r\n\n{\"prompt\": \"as it is\"}\n");
  const Result result =
      run(arguments({"--prompts", path("list.txt"), "-o", path("deep/out"), "--seed", "5"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(index_of("deep/out")[1]["prompt"], "{\"prompt\": \"as it is\"}");
  EXPECT_EQ(test::read_file(dir_ / "deep/out/000001.png"), single({"a cat", "--seed", "5"}));
}

TEST_F(CliOffline, AFullDiskIsSaidAndWhatIsDoneStays) {
  write_list(R"({"prompt": "a cat", "size": "16x16"})"
             "\n"
             R"({"prompt": "a dog", "size": "96x96"})"
             "\n");
  const auto nearly_full = [] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit most{6000, 6000};
    ::setrlimit(RLIMIT_FSIZE, &most);
  };
  const Result result = run(offline("out"), nearly_full);
  expect_one_line(result, 1, "000002.png: ");
  EXPECT_THAT(result.err, HasSubstr("1 of 2 pictures are there, and the same command goes on"));
  const Files files = files_in("out");
  EXPECT_EQ(files.size(), 2u);
  EXPECT_TRUE(files.contains("000001.png"));
  EXPECT_EQ(report("out")["kept"], 1);
}

#if defined(HALFTONE_MPIRUN)
class CliOfflineTogether : public CliOffline {
 protected:
  pid_t begin(int processes, const std::vector<std::string>& given) {
    const auto arguments = test::on_cpu(given);
    std::vector<std::string> all = {"-n", std::to_string(processes), HALFTONE_PROGRAM};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return start_program(HALFTONE_MPIRUN, all, dir_ / "stdout.txt", dir_ / "stderr.txt", [] {
      for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                               "OMPI_MCA_rmaps_base_oversubscribe"}) {
        ::setenv(name, "1", 1);
      }
      ::setenv("OMPI_MCA_plm", "isolated", 1);
      ::setenv("OMPI_MCA_btl", "self,vader", 1);
    });
  }
};

TEST_F(CliOfflineTogether, TwoProcessesMakeWhatOneMakes) {
  write_kinds();
  report("one");
  const Result result = finished(begin(2, offline("two", {"--batch", "2", "--json"})));
  ASSERT_EQ(result.code, 0) << result.err;
  const json told = json::parse(result.out);  // of the first alone
  EXPECT_EQ(told["processes"], 2);
  EXPECT_EQ(told["made"], 5);
  EXPECT_EQ(files_in("two"), files_in("one"));
  write_list("{}\n");
  const Result wrong = finished(begin(2, offline("two")));
  EXPECT_EQ(wrong.code, 1);
  const size_t said = wrong.err.find("line 1: 'prompt' is missing");
  EXPECT_NE(said, std::string::npos) << wrong.err;
  EXPECT_EQ(wrong.err.find("line 1: 'prompt' is missing", said + 1), std::string::npos);
}

TEST_F(CliOfflineTogether, WhereOneDiesTheRestIsMadeLater) {
  std::string list;
  for (int i = 0; i < 8; ++i)
    list += R"({"prompt": "a cat", "steps": 12, "size": "48x48"})"
            "\n";
  write_list(list);
  report("one");
  const pid_t launcher = begin(2, offline("two", {"--threads", "1"}));
  ASSERT_TRUE(wait_for("two", 2));
  std::istringstream children(
      test::read_file(fmt::format("/proc/{0}/task/{0}/children", launcher)));
  pid_t child = 0, last = 0;
  while (children >> child) last = child;
  ASSERT_GT(last, 0);
  ::kill(last, SIGKILL);
  EXPECT_NE(finished(launcher).code, 0);
  const Result rest = finished(begin(2, offline("two")));
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(files_in("two"), files_in("one"));
}
#endif

TEST(OfflineShares, EveryPictureIsMadeOnceAndNobodyHasMuchMore) {
  std::vector<OfflineWork> work;
  double total = 0, dearest = 0;
  for (size_t i = 0; i < 100; ++i) {
    const int steps = 1 + static_cast<int>(i % 7);
    const double cost = steps * (i % 3 == 0 ? 16.0 : 1.0);
    work.push_back({i, i % 3 == 0 ? "large" : "small", steps, cost});
    total += cost;
    dearest = std::max(dearest, 4 * cost);  // of a batch
  }
  const auto shares = share_out(work, 3, 4);
  ASSERT_EQ(shares.size(), 3u);
  std::vector<int> made(work.size());
  for (const OfflineBatches& own : shares) {
    double load = 0;
    for (const std::vector<size_t>& batch : own) {
      EXPECT_LE(batch.size(), 4u);
      for (const size_t p : batch) {
        EXPECT_EQ(work[p].kind, work[batch[0]].kind);
        load += work[p].cost;
        ++made[p];
      }
    }
    EXPECT_NEAR(load, total / 3, dearest);
  }
  EXPECT_EQ(std::ranges::count(made, 1), 100);
  // A batch that would keep others waiting is not filled.
  std::vector<OfflineWork> few(work.begin(), work.begin() + 3);
  for (OfflineWork& one : few) one.kind = "one";
  for (const OfflineBatches& own : share_out(few, 3, 4)) EXPECT_EQ(own.size(), 1u);
  EXPECT_EQ(share_out({}, 2, 4), std::vector<OfflineBatches>(2));
}

}  // namespace
}  // namespace halftone
