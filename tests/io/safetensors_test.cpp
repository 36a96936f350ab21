// Reading and writing whole files, tied to the reference package by committed fixtures.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>

#include "halftone/io/safetensors_file.h"
#include "halftone/io/safetensors_writer.h"
#include "halftone/numerics/minifloat.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensors.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using test::TempDir;

const fs::path kFiles = fs::path(HALFTONE_TEST_DATA) / "safetensors";

// The same bytes that tools/golden/safetensors_fixtures.py makes.
Tensor pattern(DType dtype, const Shape& shape, int salt) {
  Tensor t = Tensor::empty(dtype, shape);
  for (size_t i = 0; i < t.bytes().size(); ++i) {
    const auto value = static_cast<int>((i * 7 + static_cast<size_t>(salt) * 13) % 251);
    t.mutable_bytes()[i] = static_cast<std::byte>(dtype == DType::kBool ? value & 1 : value);
  }
  return t;
}

std::vector<std::pair<std::string, Tensor>> fixture_tensors() {
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const std::string name(name_of(dtype));
    tensors.emplace_back("matrix." + name, pattern(dtype, {3, 8}, i));
    tensors.emplace_back("empty." + name, pattern(dtype, {0, 6}, 0));
    if (bits_of(dtype) % 8 == 0)
      tensors.emplace_back("scalar." + name, pattern(dtype, {}, i + 100));
  }
  return tensors;
}
const Metadata kMetadata = {{"format", "pt"}, {"note", "größe 🍎 \"quoted\"\n"}};

TEST(Safetensors, ReadsEveryDtypeThatTheReferencePackageWrote) {
  const SafetensorsFile file(kFiles / "reference.safetensors");
  EXPECT_EQ(file.metadata(), kMetadata);
  size_t missing = 0;
  for (const auto& [name, tensor] : fixture_tensors()) {
    if (name.find("F6_") != std::string::npos) {  // the package reads but does not write these
      ++missing;
      continue;
    }
    const Tensor found = file.tensor(name);
    EXPECT_EQ(found.dtype(), tensor.dtype()) << name;
    EXPECT_EQ(found.shape(), tensor.shape()) << name;
    EXPECT_EQ(test::bytes_of(found), test::bytes_of(tensor)) << name;
    EXPECT_TRUE(found.mapped()) << name << " was copied";
  }
  EXPECT_EQ(file.tensors().size() + missing, fixture_tensors().size());
}

// The fixture was read and compared by the reference package (see the tool that makes them).
TEST(Safetensors, WritesTheFileThatTheReferencePackageRead) {
  const TempDir dir;
  write_safetensors(dir / "out.safetensors", fixture_tensors(), kMetadata);
  if (std::getenv("HALFTONE_UPDATE_FIXTURES") != nullptr) {  // then verify with the tool
    fs::copy_file(dir / "out.safetensors", kFiles / "written_by_halftone.safetensors",
                  fs::copy_options::overwrite_existing);
  }
  EXPECT_TRUE(test::read_file(dir / "out.safetensors") ==
              test::read_file(kFiles / "written_by_halftone.safetensors"));
}

TEST(Safetensors, CodecsAgreeWithMlDtypesOnEveryBf16Value) {
  const SafetensorsFile file(kFiles / "ml_dtypes_codes.safetensors");
  const auto e4m3 = test::bytes_of(file.tensor("e4m3")), e5m2 = test::bytes_of(file.tensor("e5m2")),
             e2m1 = test::bytes_of(file.tensor("e2m1"));
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float x = to_float(bf16{static_cast<uint16_t>(bits)});
    if (std::isnan(x)) continue;  // ml_dtypes keeps the sign of NaN
    // ml_dtypes does not saturate 8-bit formats; E4M3 overflows to NaN of either sign.
    const uint8_t code = encode<E4M3>(x, Overflow::kSpecial);
    ASSERT_EQ((code & 0x7F) == 0x7F ? 0x7F : code, (e4m3[bits] & 0x7F) == 0x7F ? 0x7F : e4m3[bits])
        << x;
    ASSERT_EQ(encode<E5M2>(x, Overflow::kSpecial), e5m2[bits]) << x;
    ASSERT_EQ(encode<E2M1>(x), e2m1[bits]) << x;
  }
}

TEST(Safetensors, DataOfEveryTensorIsAligned) {
  const TempDir dir;
  std::vector<std::pair<std::string, Tensor>> tensors = {{"a", pattern(DType::kU8, {3}, 1)},
                                                         {"b", pattern(DType::kF64, {2}, 2)},
                                                         {"c", pattern(DType::kBF16, {5}, 3)},
                                                         {"d", pattern(DType::kF32, {1}, 4)}};
  write_safetensors(dir / "x.safetensors", tensors);
  const SafetensorsFile file(dir / "x.safetensors");
  for (const TensorEntry& entry : file.tensors())
    EXPECT_TRUE(file.tensor(entry).mapped()) << entry.name;
}

TEST(Safetensors, UnalignedDataOfOtherWritersIsCopied) {
  const TempDir dir;
  // "a" takes 3 bytes, so the F32 behind it starts at an odd address.
  const std::string json =
      R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"F32","shape":[1],"data_offsets":[3,7]}})";
  std::string content(8, '\0');
  content[0] = static_cast<char>(json.size());
  content += json + std::string("\x01\x02\x03\x00\x00\x80\x3f", 7);
  test::write_file(dir / "x.safetensors", content);
  const SafetensorsFile file(dir / "x.safetensors");
  EXPECT_FALSE(file.tensor("b").mapped());
  EXPECT_EQ(file.tensor("b").as<float>()[0], 1.0f);
}

TEST(Safetensors, EmptyFileOfNoTensors) {
  const TempDir dir;
  write_safetensors(dir / "x.safetensors", {});
  EXPECT_TRUE(SafetensorsFile(dir / "x.safetensors").tensors().empty());
}

TEST(Safetensors, MissingTensorIsNamed) {
  const SafetensorsFile file(kFiles / "reference.safetensors");
  EXPECT_EQ(test::error_of([&] { file.tensor("nope"); }),
            (kFiles / "reference.safetensors").string() + ": has no tensor 'nope'");
}

// ---- what a crash or a full disk leaves behind --------------------------------------------------

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& item : fs::directory_iterator(folder)) names.push_back(item.path().filename());
  return names;
}

const std::vector<TensorSpec> kTwo = {{"a", DType::kU8, {1 << 20}}, {"b", DType::kU8, {1 << 20}}};

TEST(SafetensorsWriter, NothingStandsUnderTheFinalNameBeforeFinish) {
  const TempDir dir;
  const Tensor megabyte = pattern(DType::kU8, {1 << 20}, 1);
  {
    SafetensorsWriter writer(dir / "x.safetensors", kTwo, {});
    writer.write("b", megabyte.bytes());
    EXPECT_FALSE(fs::exists(dir / "x.safetensors"));
    // Abandoned half-way.
  }
  EXPECT_TRUE(names_in(dir.path()).empty());
}

TEST(SafetensorsWriter, KilledHalfwayLeavesTheOldFileUntouched) {
  const TempDir dir;
  test::write_file(dir / "x.safetensors", "old");
  const pid_t child = ::fork();
  if (child == 0) {
    SafetensorsWriter writer(dir / "x.safetensors", kTwo, {});
    writer.write("a", pattern(DType::kU8, {1 << 20}, 1).bytes());
    ::raise(SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(test::read_file(dir / "x.safetensors"), "old");
}

TEST(SafetensorsWriter, AFullDiskIsAnErrorAndLeavesNothing) {
  const TempDir dir;
  const pid_t child = ::fork();
  if (child == 0) {
    // A limit on the size of files stands in for a full disk.
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::string message;
    try {
      SafetensorsWriter writer(dir / "x.safetensors", kTwo, {});
      writer.write("a", pattern(DType::kU8, {1 << 20}, 1).bytes());
      writer.write("b", pattern(DType::kU8, {1 << 20}, 1).bytes());
      writer.finish();
    } catch (const Error& error) {
      message = error.what();
    }
    const bool named = message.find("x.safetensors") != std::string::npos;
    ::_exit(named ? 7 : 8);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_TRUE(names_in(dir.path()).empty());
}

TEST(SafetensorsWriter, AWriteThatFailsHalfwayIsAnErrorAndLeavesNothing) {
  const TempDir dir;
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    std::string message;
    try {
      SafetensorsWriter writer(dir / "x.safetensors", kTwo, {});
      writer.write("a", pattern(DType::kU8, {1 << 20}, 1).bytes());
      const rlimit limit{1 << 20, 1 << 20};  // the disk "fills up" now
      ::setrlimit(RLIMIT_FSIZE, &limit);
      writer.write("b", pattern(DType::kU8, {1 << 20}, 1).bytes());
      writer.finish();
    } catch (const Error& error) {
      message = error.what();
    }
    ::_exit(message.find("x.safetensors: cannot write") != std::string::npos ? 7 : 8);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_TRUE(names_in(dir.path()).empty());
}

TEST(SafetensorsWriter, DoesNotReplaceWhatIsNoFile) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(test::error_of([&] { SafetensorsWriter(dir / "pipe", kTwo, {}); }),
            (dir / "pipe").string() + ": is not a regular file");
  EXPECT_EQ(test::error_of([&] { SafetensorsFile(dir / "pipe"); }),
            (dir / "pipe").string() + ": is not a regular file");  // and does not wait for a writer
  EXPECT_EQ(test::error_of([&] { SafetensorsWriter("", kTwo, {}); }), "output: the name is empty");
  EXPECT_TRUE(fs::is_fifo(dir / "pipe"));
}

TEST(SafetensorsWriter, ReplacesAnOlderFileAtomically) {
  const TempDir dir;
  test::write_file(dir / "x.safetensors", "old");
  write_safetensors(dir / "x.safetensors", {{"a", pattern(DType::kU8, {4}, 1)}});
  EXPECT_EQ(SafetensorsFile(dir / "x.safetensors").tensors().size(), 1u);
  EXPECT_EQ(names_in(dir.path()).size(), 1u);
}

TEST(SafetensorsWriter, RefusesWhatItCannotStore) {
  const TempDir dir;
  const auto write = [&](std::vector<TensorSpec> specs) {
    return test::error_of([&] { SafetensorsWriter(dir / "x", specs, {}); });
  };
  EXPECT_NE(
      write({{"a", DType::kU8, {1}}, {"a", DType::kU8, {1}}}).find("two tensors are called 'a'"),
      std::string::npos);
  EXPECT_NE(write({{"a", DType::kF4, {3}}}).find("tensor 'a'"), std::string::npos);
  EXPECT_NE(write({{"__metadata__", DType::kU8, {1}}}).find("__metadata__"), std::string::npos);
  EXPECT_NE(test::error_of([&] {
              SafetensorsWriter(dir / "no/such/folder/x", {}, {});
            }).find("there is no folder"),
            std::string::npos);
  EXPECT_NE(test::error_of([&] { SafetensorsWriter(dir.path(), {}, {}); }).find("is a folder"),
            std::string::npos);
  EXPECT_TRUE(names_in(dir.path()).empty());
}

}  // namespace
}  // namespace halftone
