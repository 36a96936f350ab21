// Files made to break a reader: each must be refused with a line that names file, tensor, reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "halftone/io/checkpoint.h"
#include "halftone/io/json.h"
#include "halftone/io/safetensors_writer.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensors.h"

namespace halftone {
namespace {

using test::error_of;
using test::TempDir;
using testing::AllOf;
using testing::HasSubstr;

std::string file_with(const std::string& json, size_t data_bytes) {
  std::string content;
  for (int i = 0; i < 8; ++i) content += static_cast<char>(json.size() >> (8 * i) & 0xFF);
  return content + json + std::string(data_bytes, 'x');
}

std::string parse_error(const std::string& content) {
  return error_of(
      [&] { parse_safetensors_header(std::as_bytes(std::span(content)), "f.safetensors"); });
}
std::string parse_error(const std::string& json, size_t data_bytes) {
  return parse_error(file_with(json, data_bytes));
}

TEST(HostileHeader, AcceptsWhatIsRight) {
  EXPECT_EQ(parse_error("{}", 0), "(no error)");
  EXPECT_EQ(parse_error("{}      ", 0), "(no error)");  // padding
  EXPECT_EQ(
      parse_error(
          R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1],"extra":{"x":[1,{"y":2}]}}})", 1),
      "(no error)");  // fields of later versions are passed over
}

TEST(HostileHeader, LengthBeyondTheFile) {
  EXPECT_THAT(parse_error(""), HasSubstr("f.safetensors: 0 bytes are too few"));
  EXPECT_THAT(parse_error("1234567"), HasSubstr("too few"));
  EXPECT_THAT(parse_error(std::string(8, '\xff')), HasSubstr("beyond the file"));
  EXPECT_THAT(parse_error(std::string("\x03\0\0\0\0\0\0\0{}", 10)), HasSubstr("beyond the file"));
}

TEST(HostileHeader, BadJson) {
  for (const char* json :
       {"", "{", "[]", "null", "{\"a\"}", "{\"a\":}", "{\"a\":1}", "{}x", "\xff",
        R"({"a":{"dtype":"U8"})", R"({"a":[]})", "{'a':1}", "{\"a\":{\"x\":1e999}}"}) {
    EXPECT_THAT(parse_error(json, 0), HasSubstr("f.safetensors: ")) << json;
    EXPECT_NE(parse_error(json, 0), "(no error)") << json;
  }
  const std::string deep(100000, '[');
  EXPECT_NE(parse_error("{\"a\":{\"extra\":" + deep, 0), "(no error)");
}

// What is no JSON, but the parser would pass over it; the format's own reader refuses all of these.
TEST(HostileHeader, ForeignBytesAroundTheJson) {
  const std::string bom = "\xEF\xBB\xBF", nul(1, '\0');
  EXPECT_EQ(parse_error(bom + "{}", 0), "f.safetensors: header is not valid JSON at byte 1");
  EXPECT_EQ(parse_error("{}" + nul, 0), "f.safetensors: header is not valid JSON at byte 3");
  for (const std::string& json : std::vector<std::string>{
           "{}" + bom, "{}" + nul + "x", "{}  " + nul, nul + "{}", nul, "{" + nul + "}", bom,
           "{\"a" + nul + "\":1}", "\xFE\xFF{}", "{}\v", "{} \x1A"}) {
    EXPECT_THAT(parse_error(json, 0), HasSubstr("f.safetensors: header is not valid JSON"))
        << printable(json);
  }
  for (const char* json : {"{} ", "{}\n\t\r", " {}"}) EXPECT_EQ(parse_error(json, 0), "(no error)");
}

// A file is not begun that could not be read again.
TEST(HostileHeader, OneThatIsTooLongIsNotWritten) {
  const TempDir dir;
  const auto write = [&](const Metadata& metadata) {
    return error_of([&] {
      write_safetensors(dir / "x.safetensors", {{"a", test::f32_tensor({1}, {1})}}, metadata);
    });
  };
  EXPECT_THAT(write({{"k", std::string(kMaxSafetensorsHeader, 'x')}}),
              AllOf(HasSubstr("x.safetensors: its header would be of 1000"),
                    HasSubstr("more than readers take")));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  Metadata many;
  for (int i = 0; i <= 100'000; ++i) many[std::to_string(i)];
  EXPECT_THAT(write(many), HasSubstr("100001 metadata entries"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  many.erase("0");
  EXPECT_EQ(write(many), "(no error)");
  EXPECT_EQ(SafetensorsFile(dir / "x.safetensors").metadata().size(), 100'000u);
}

TEST(HostileHeader, DuplicateKeys) {
  const std::string a = R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_THAT(parse_error("{" + a + "," + a + "}", 1), HasSubstr("duplicate key 'a'"));
  EXPECT_THAT(
      parse_error(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
      AllOf(HasSubstr("tensor 'a'"), HasSubstr("duplicate key 'dtype'")));
  EXPECT_THAT(parse_error(R"({"__metadata__":{"k":"1","k":"2"}})", 0),
              HasSubstr("duplicate metadata key 'k'"));
}

TEST(HostileHeader, MissingOrWrongFields) {
  const auto entry = [](const std::string& fields) {
    return parse_error("{\"a\":{" + fields + "}}", 1);
  };
  EXPECT_THAT(entry(R"("shape":[1],"data_offsets":[0,1])"), HasSubstr("tensor 'a': has no dtype"));
  EXPECT_THAT(entry(R"("dtype":"U8","data_offsets":[0,1])"), HasSubstr("tensor 'a': has no shape"));
  EXPECT_THAT(entry(R"("dtype":"U8","shape":[1])"), HasSubstr("tensor 'a': has no data_offsets"));
  EXPECT_THAT(entry(R"("dtype":"U8","shape":[1],"data_offsets":[0])"), HasSubstr("data_offsets"));
  EXPECT_THAT(entry(R"("dtype":"U8","shape":[1],"data_offsets":[0,1,2])"),
              HasSubstr("data_offsets"));
  EXPECT_THAT(entry(R"("dtype":"F7","shape":[1],"data_offsets":[0,1])"),
              HasSubstr("unknown dtype 'F7'"));
  EXPECT_THAT(entry(R"("dtype":8,"shape":[1],"data_offsets":[0,1])"), HasSubstr("tensor 'a'"));
  EXPECT_THAT(entry(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])"), HasSubstr("negative"));
  EXPECT_THAT(entry(R"("dtype":"U8","shape":[1.0],"data_offsets":[0,1])"), HasSubstr("fraction"));
  EXPECT_THAT(entry(R"("dtype":"U8","shape":["1"],"data_offsets":[0,1])"), HasSubstr("a string"));
  EXPECT_THAT(entry(R"("dtype":"U8","shape":{},"data_offsets":[0,1])"), HasSubstr("an object"));
  EXPECT_THAT(entry(R"("dtype":"U8","shape":[[1]],"data_offsets":[0,1])"), HasSubstr("an array"));
  EXPECT_THAT(entry(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1])"),
              HasSubstr("8 dimensions"));
  EXPECT_THAT(parse_error(R"({"__metadata__":{"k":1}})", 0),
              HasSubstr("metadata 'k' is not a string"));
}

TEST(HostileHeader, SizesAndOffsets) {
  const auto entry = [](const std::string& dtype, const std::string& shape,
                        const std::string& offsets, size_t data = 8) {
    return parse_error(fmt::format(R"({{"a":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})",
                                   dtype, shape, offsets),
                       data);
  };
  EXPECT_EQ(entry("F32", "[2]", "[0,8]"), "(no error)");
  EXPECT_THAT(entry("F32", "[3]", "[0,8]"), AllOf(HasSubstr("tensor 'a'"), HasSubstr("takes 12")));
  EXPECT_THAT(entry("F32", "[4]", "[0,16]"), HasSubstr("outside"));
  EXPECT_THAT(entry("F32", "[2]", "[8,0]"), HasSubstr("outside"));
  EXPECT_THAT(entry("F32", "[1]", "[4,8]"), HasSubstr("4 bytes before it belong to no tensor"));
  EXPECT_THAT(entry("F32", "[1]", "[0,4]"), HasSubstr("4 bytes at the end belong to no tensor"));
  EXPECT_THAT(entry("F4", "[3]", "[0,2]", 2), HasSubstr("whole bytes"));
  EXPECT_THAT(entry("F32", "[9223372036854775807,4]", "[0,8]"), HasSubstr("overflows"));
  EXPECT_THAT(entry("F32", "[4611686018427387904]", "[0,8]"), HasSubstr("overflows"));
  EXPECT_THAT(entry("F32", "[4294967296,4294967296]", "[0,8]"), HasSubstr("overflows"));
  EXPECT_THAT(entry("F32", "[18446744073709551615]", "[0,8]"), HasSubstr("too large"));
  EXPECT_THAT(entry("F32", "[2]", "[0,18446744073709551615]"), HasSubstr("too large"));
  EXPECT_THAT(entry("F32", "[2]", "[9223372036854775807,9223372036854775807]"),
              HasSubstr("outside"));
}

TEST(HostileHeader, OverlappingTensors) {
  EXPECT_THAT(
      parse_error(
          R"({"a":{"dtype":"U8","shape":[6],"data_offsets":[0,6]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
          8),
      AllOf(HasSubstr("tensor 'b'"), HasSubstr("overlap those of tensor 'a'")));
  EXPECT_THAT(
      parse_error(
          R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
          8),
      HasSubstr("overlap"));
}

TEST(HostileHeader, NamesThatWouldBreakTheTerminal) {
  EXPECT_THAT(parse_error(R"({"a\n\u001b[2J":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}})", 1),
              HasSubstr("tensor 'a\\x0a\\x1b[2J'"));
}

TEST(HostileFile, TruncatedAnywhereIsRefused) {
  const TempDir dir;
  write_safetensors(
      dir / "x.safetensors",
      {{"a", test::f32_tensor({3}, {1, 2, 3})}, {"b", Tensor::zeros(DType::kU8, {5})}},
      {{"k", "v"}});
  const std::string whole = test::read_file(dir / "x.safetensors");
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string message = parse_error(whole.substr(0, size));
    ASSERT_THAT(message, HasSubstr("f.safetensors: ")) << size;
  }
  EXPECT_EQ(parse_error(whole), "(no error)");
  EXPECT_NE(parse_error(whole + "x"), "(no error)");
}

// What another byte makes of a header, by what stands there: names and texts take any character,
// the dtype takes another one of its size, padding takes other spaces; everything else is refused.
TEST(HostileFile, EveryOtherByteOfTheHeaderIsReadAsItSaysOrRefused) {
  const TempDir dir;
  write_safetensors(dir / "x.safetensors", {{"a", test::f32_tensor({3}, {1, 2, 3})}}, {{"k", "v"}});
  const std::string whole = test::read_file(dir / "x.safetensors");
  const size_t data = whole.size() - 12, end = whole.rfind('}', data) + 1;
  const size_t name = whole.find(R"("a")") + 1, key = whole.find(R"("k")") + 1,
               text = whole.find(R"("v")") + 1, dtype = whole.find("F32");
  int read = 0;
  for (size_t i = 0; i < data; ++i) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string bad = whole;
      bad[i] = static_cast<char>(byte);
      if (bad == whole) continue;
      const std::string there(1, bad[i]);
      const bool character = byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\';
      const bool taken = i == name || i == key || i == text ? character
                         : i == dtype                       ? byte == 'I' || byte == 'U'
                                      : i >= end && (byte == '\n' || byte == '\t' || byte == '\r');
      SafetensorsHeader header;
      const std::string message = error_of([&] {
        header = parse_safetensors_header(std::as_bytes(std::span(bad)), "f.safetensors");
      });
      SCOPED_TRACE(fmt::format("byte {} is {:#04x}: {}", i, byte, message));
      if (!taken) {
        ASSERT_THAT(message, testing::StartsWith("f.safetensors: "));
        continue;
      }
      ++read;
      ASSERT_EQ(message, "(no error)");
      ASSERT_EQ(header.tensors.size(), 1u);
      EXPECT_EQ(header.tensors[0].name, i == name ? there : "a");
      EXPECT_EQ(name_of(header.tensors[0].dtype), (i == dtype ? there : "F") + "32");
      EXPECT_EQ(header.tensors[0].shape, Shape({3}));
      EXPECT_EQ(header.tensors[0].byte_size(), 12);
      const Metadata expected{{i == key ? there : "k", i == text ? there : "v"}};
      EXPECT_EQ(header.metadata, expected);
    }
  }
  EXPECT_GT(read, 3 * 92);
}

// ---- folders with an index ----------------------------------------------------------------------

class ShardedFolder : public testing::Test {
 protected:
  void SetUp() override {
    write_safetensors(dir_ / "m-00001.safetensors", {{"layers.2.w", test::f32_tensor({1}, {2})},
                                                     {"layers.10.w", test::f32_tensor({1}, {10})}});
    write_safetensors(dir_ / "m-00002.safetensors", {{"norm.w", test::f32_tensor({1}, {3})}},
                      {{"k", "v"}});
  }
  void write_index(const std::string& weight_map) {
    test::write_file(dir_ / "m.safetensors.index.json",
                     R"({"metadata":{"total_size":12},"weight_map":)" + weight_map + "}");
  }
  std::string open_error() {
    return error_of([&] { Checkpoint::open(dir_.path()); });
  }
  static constexpr const char* kGood =
      R"({"layers.2.w":"m-00001.safetensors","layers.10.w":"m-00001.safetensors","norm.w":"m-00002.safetensors"})";
  TempDir dir_;
};

TEST_F(ShardedFolder, OpensAllShardsInNaturalOrder) {
  write_index(kGood);
  const auto checkpoint = Checkpoint::open(dir_.path());
  ASSERT_EQ(checkpoint.items().size(), 3u);
  EXPECT_EQ(checkpoint.items()[0].entry->name, "layers.2.w");
  EXPECT_EQ(checkpoint.items()[1].entry->name, "layers.10.w");
  EXPECT_EQ(checkpoint.tensor("layers.10.w").as<float>()[0], 10.0f);
  EXPECT_EQ(checkpoint.tensor_bytes(), 12);
  EXPECT_EQ(checkpoint.metadata().at("k"), "v");
  EXPECT_TRUE(checkpoint.unindexed().empty());
  EXPECT_EQ(Checkpoint::open(dir_ / "m.safetensors.index.json").items().size(), 3u);
  EXPECT_THAT(error_of([&] { checkpoint.tensor("nope"); }), HasSubstr("has no tensor 'nope'"));
}

TEST_F(ShardedFolder, WrongIndexes) {
  EXPECT_THAT(open_error(), HasSubstr("0 indexes and 2 .safetensors files"));
  write_index(R"({"a":"missing.safetensors"})");
  EXPECT_THAT(open_error(), AllOf(HasSubstr("m.safetensors.index.json"), HasSubstr("tensor 'a'"),
                                  HasSubstr("shard 'missing.safetensors' is missing")));
  write_index(R"({"a":"m-00001.safetensors"})");
  EXPECT_THAT(open_error(), HasSubstr("tensor 'a' is not in shard 'm-00001.safetensors'"));
  for (const char* outside :
       {"../m-00001.safetensors", "/etc/passwd", "x/../../y", "", "m-00001.safetensors\\u0000x"}) {
    write_index(fmt::format(R"({{"a":"{}"}})", outside));
    EXPECT_THAT(open_error(), HasSubstr("outside the folder")) << outside;
  }
  write_index(fmt::format(R"({{"a":"{}"}})", std::string(300, 'x')));
  EXPECT_THAT(open_error(), AllOf(HasSubstr("tensor 'a'"), HasSubstr("is missing")));
  write_index(R"({"a":1})");
  EXPECT_THAT(open_error(), HasSubstr("tensor 'a': its shard is not a name"));
  write_index(R"({"a":"m-00001.safetensors","a":"m-00002.safetensors"})");
  EXPECT_THAT(open_error(), HasSubstr("duplicate key 'a'"));
  write_index("[]");
  EXPECT_THAT(open_error(), HasSubstr("weight_map"));
  write_index("{");
  EXPECT_THAT(open_error(), HasSubstr("bad JSON"));
}

TEST_F(ShardedFolder, TensorsThatTheIndexForgotAreListed) {
  write_index(R"({"layers.2.w":"m-00001.safetensors"})");
  const auto checkpoint = Checkpoint::open(dir_.path());
  EXPECT_THAT(checkpoint.unindexed(), testing::ElementsAre("layers.10.w"));
}

TEST_F(ShardedFolder, SpellingsOfAShardAreOneShard) {
  write_index(
      R"({"layers.2.w":"./m-00001.safetensors","layers.10.w":"m-00001.safetensors","norm.w":".//m-00002.safetensors"})");
  const auto checkpoint = Checkpoint::open(dir_.path());
  ASSERT_EQ(checkpoint.files().size(), 2u);
  EXPECT_EQ(checkpoint.shard_name(*checkpoint.files()[0]), "m-00001.safetensors");
  EXPECT_TRUE(checkpoint.unindexed().empty());
}

TEST_F(ShardedFolder, ShardsOfOneNameInSeveralFoldersAreSeveral) {
  for (const char* folder : {"a", "b"}) {
    std::filesystem::create_directory(dir_ / folder);
    write_safetensors(dir_ / folder / "w", {{folder, test::f32_tensor({1}, {2})}});
  }
  write_index(R"({"a":"a/w","b":"b//./w"})");
  for (const std::filesystem::path& path : {dir_.path(), dir_ / "m.safetensors.index.json"}) {
    const auto checkpoint = Checkpoint::open(path);
    ASSERT_EQ(checkpoint.files().size(), 2u);
    EXPECT_EQ(checkpoint.shard_name(*checkpoint.files()[0]), "a/w");
    EXPECT_EQ(checkpoint.shard_name(*checkpoint.files()[1]), "b/w");
  }
}

TEST_F(ShardedFolder, WhatShardsSayOfTheirTensorsIsPutTogether) {
  const auto shard = [&](const char* name, const char* tensor, const std::string& said) {
    write_safetensors(dir_ / name, {{tensor, test::f32_tensor({1}, {2})}},
                      {{"halftone.notes", said}, {"k", name}});
  };
  write_index(R"({"a":"m-00001.safetensors","b":"m-00002.safetensors"})");
  shard("m-00001.safetensors", "a", R"({"version":1,"weights":{"a":{"input_scale":0.5}}})");
  shard("m-00002.safetensors", "b", R"({"version":1,"weights":{"b":{"input_scale":0.25}}})");
  const auto metadata = Checkpoint::open(dir_.path()).metadata();
  EXPECT_EQ(parse_json(metadata.at("halftone.notes"), "f"),
            nlohmann::json::parse(
                R"({"version":1,"weights":{"a":{"input_scale":0.5},"b":{"input_scale":0.25}}})"));
  EXPECT_EQ(metadata.at("k"), "m-00001.safetensors");
  shard("m-00002.safetensors", "b", R"({"version":1,"weights":{"a":{"input_scale":0.25}}})");
  EXPECT_THAT(open_error(),
              HasSubstr("m-00002.safetensors: metadata halftone.notes: contradicts that of"));
  shard("m-00002.safetensors", "b", "{");
  EXPECT_THAT(open_error(), HasSubstr("m-00002.safetensors: metadata halftone.notes: bad JSON"));
}

TEST_F(ShardedFolder, ABrokenShardIsNamed) {
  write_index(kGood);
  test::write_file(dir_ / "m-00002.safetensors", "garbage!garbage!");
  EXPECT_THAT(open_error(), HasSubstr("m-00002.safetensors: header length"));
}

TEST(Checkpoint, SingleFilesAndEmptyFolders) {
  const TempDir dir;
  EXPECT_THAT(error_of([&] { Checkpoint::open(dir.path()); }),
              HasSubstr("holds no .safetensors file"));
  EXPECT_FALSE(Checkpoint::is_checkpoint_folder(dir.path()));
  EXPECT_THAT(error_of([&] { Checkpoint::open(dir / "x.safetensors"); }),
              HasSubstr("no such file"));
  write_safetensors(dir / "x.safetensors", {{"a", test::f32_tensor({1}, {2})}});
  EXPECT_EQ(Checkpoint::open(dir.path()).items().size(), 1u);
  EXPECT_EQ(Checkpoint::open(dir / "x.safetensors").items().size(), 1u);
  EXPECT_TRUE(Checkpoint::is_checkpoint_folder(dir.path()));
}

// ---- what a name may stand for instead of a file ------------------------------------------------

TEST(HostileFile, WhatIsNoFileIsSaidInOneLineAndDoesNotHang) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "folder");
  std::filesystem::create_symlink("loop", dir / "loop");
  std::filesystem::create_symlink("nowhere", dir / "dangling");
  test::write_file(dir / "empty", "");
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  const TempDir shorter;  // a socket's name may have 107 bytes
  sockaddr_un address{AF_UNIX, {}};
  const std::string socket = (shorter / "socket").string();
  ASSERT_LT(socket.size(), sizeof(address.sun_path));
  std::copy(socket.begin(), socket.end(), address.sun_path);
  ASSERT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const std::pair<std::filesystem::path, const char*> cases[] = {
      {dir / "none", ": no such file"},
      {dir / "dangling", ": no such file"},
      {dir / "folder", ": is a folder, not a file"},
      {dir / "pipe", ": is not a regular file"},
      {socket, ": is not a regular file"},
      {"/dev/null", ": is not a regular file"},
      {"/dev/zero", ": is not a regular file"},
      {dir / "empty" / "x", ": Not a directory"},
      {dir / std::string(300, 'x'), ": File name too long"},
      {dir / "loop", ": Too many levels of symbolic links"},
  };
  for (const auto& [path, reason] : cases) {
    EXPECT_EQ(error_of([&] { Storage::map_file(path); }), path.string() + reason);
    EXPECT_EQ(error_of([&] { SafetensorsFile{path}; }), path.string() + reason);
    EXPECT_EQ(error_of([&] { read_json_file(path); }), path.string() + reason);
  }
  const std::string empty = (dir / "empty").string();
  EXPECT_EQ(error_of([&] { SafetensorsFile{empty}; }),
            empty + ": 0 bytes are too few for a safetensors file");
  EXPECT_EQ(error_of([&] { read_json_file(empty); }), empty + ": is empty instead of JSON");
  ::close(listener);
}

TEST(HostileFile, AFolderThatIsCalledLikeAFileIsNone) {
  const TempDir dir;
  std::filesystem::create_symlink(".", dir / "x.safetensors");
  std::filesystem::create_directory(dir / "m.safetensors.index.json");
  EXPECT_FALSE(Checkpoint::is_checkpoint_folder(dir.path()));
  EXPECT_THAT(error_of([&] { Checkpoint::open(dir.path()); }),
              HasSubstr("holds no .safetensors file"));
}

TEST(Json, ForeignBytesAreRefused) {
  const std::string bom = "\xEF\xBB\xBF", nul(1, '\0');
  for (const std::string& text :
       std::vector<std::string>{bom + "{}", "{}" + nul, "{}" + nul + "x", nul, "[1," + nul + "]",
                                "\"a" + nul + "\"", bom + bom, "{}" + bom}) {
    EXPECT_THAT(error_of([&] { parse_json(text, "f.json"); }),
                HasSubstr("f.json: bad JSON at byte"))
        << printable(text);
  }
  EXPECT_EQ(error_of([] { parse_json("", "f.json"); }), "f.json: is empty instead of JSON");
  EXPECT_EQ(parse_json(R"("\u0000\ufeff")", "f").get<std::string>(), nul + bom);
}

TEST(Json, WhatCouldNotBeReadAgainIsNotMade) {
  const std::string most(kMaxJsonBytes - 2, 'x');
  EXPECT_EQ(parse_json(json_text(most, "f"), "f"), most);
  EXPECT_THAT(error_of([&] { json_text(most + "x", "metadata k"); }),
              HasSubstr("metadata k: would be 16777217 bytes of JSON"));
}

TEST(Json, IsReadStrictly) {
  EXPECT_THAT(error_of([] { parse_json(std::string((16 << 20) + 1, ' '), "f"); }),
              HasSubstr("too many"));
  EXPECT_THAT(error_of([] { parse_json("[1e999]", "f.json"); }), HasSubstr("f.json: bad JSON"));
  EXPECT_EQ(parse_json(R"({"a":[1,2]})", "f")["a"][1], 2);
  EXPECT_EQ(error_of([] { parse_json(R"({"a":1,"a":2})", "f.json"); }),
            "f.json: duplicate key 'a'");
  EXPECT_EQ(error_of([] { parse_json(R"([{"a":1},{"a":2}])", "f"); }), "(no error)");
  EXPECT_THAT(error_of([] { parse_json("{]", "f.json"); }),
              HasSubstr("f.json: bad JSON at byte 2"));
  EXPECT_THAT(error_of([] { parse_json(std::string(1000, '[') + std::string(1000, ']'), "f"); }),
              HasSubstr("deep"));
}

}  // namespace
}  // namespace halftone
