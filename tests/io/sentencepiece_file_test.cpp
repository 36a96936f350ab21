#include "halftone/io/sentencepiece_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halftone/io/tokenizer.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace halftone {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using testing::HasSubstr;

const fs::path kModel = fs::path(HALFTONE_TEST_DATA) / "tokenizer" / "t5" / "spiece.model";

// Protobuf by hand.
std::string number(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(0x80 | (value & 0x7F));
  return bytes += static_cast<char>(value);
}
std::string integer_field(int field, uint64_t value) {
  return number(static_cast<uint64_t>(field) << 3) + number(value);
}
std::string bytes_field(int field, const std::string& value) {
  return number(static_cast<uint64_t>(field) << 3 | 2) + number(value.size()) + value;
}
std::string piece(const std::string& text, const std::string& more = {}) {
  return bytes_field(1, bytes_field(1, text) + more);
}

std::string failure(const std::string& bytes) {
  return error_of([&] { parse_sentencepiece(bytes, "s.model"); });
}

TEST(SentencePieceFile, ReadsPiecesAndSpecs) {
  const SentencePieceFile file = parse_sentencepiece(test::read_file(kModel), "s.model");
  ASSERT_GT(file.pieces.size(), 100u);
  EXPECT_EQ(file.pieces[0].text, "<pad>");
  EXPECT_EQ(file.pieces[0].kind, SentencePiece::kControl);
  EXPECT_EQ(file.pieces[1].text, "</s>");
  EXPECT_EQ(file.pieces[2].kind, SentencePiece::kUnknown);
  EXPECT_LT(file.pieces.back().score, -1);
  EXPECT_EQ(file.model, SentencePieceFile::kUnigram);
  EXPECT_EQ(file.unk_id, 2);
  EXPECT_EQ(file.bos_id, -1);
  EXPECT_EQ(file.eos_id, 1);
  EXPECT_EQ(file.pad_id, 0);
  EXPECT_TRUE(file.add_dummy_prefix);
  EXPECT_GT(file.charsmap.size(), 1000u);
}

TEST(SentencePieceFile, FieldsThatAreMissingHaveTheirDefaults) {
  const SentencePieceFile file = parse_sentencepiece(piece("a"), "s.model");
  EXPECT_EQ(file.pieces.at(0).kind, SentencePiece::kNormal);
  EXPECT_EQ(file.unk_id, 0);
  EXPECT_EQ(file.eos_id, 2);
  EXPECT_TRUE(file.remove_extra_whitespaces);
  // Fields of a newer version are passed over, whatever they hold.
  const std::string newer = integer_field(99, 5) + bytes_field(98, "x") + number(97 << 3 | 1) +
                            std::string(8, 'x') + number(96 << 3 | 5) + "1234";
  EXPECT_EQ(parse_sentencepiece(newer + piece("a", newer), "s.model").pieces.size(), 1u);
}

TEST(SentencePieceFile, DamageIsAnErrorThatNamesTheFile) {
  EXPECT_EQ(failure(""), "s.model: is no sentencepiece model: it has no pieces");
  EXPECT_THAT(failure("\x0A"), HasSubstr("ends within a number"));
  EXPECT_THAT(failure("\x0A\x05"), HasSubstr("ends within a field"));
  EXPECT_THAT(failure(std::string(20, '\xFF')), HasSubstr("a number of more than 64 bits"));
  EXPECT_THAT(failure(bytes_field(1,
                                  "\x0A\x7F"
                                  "a")),
              HasSubstr("pieces ends within a field"));
  EXPECT_THAT(failure("\x0B"), HasSubstr("a field of a kind that is not known"));
  EXPECT_THAT(failure(std::string(1, '\0')), HasSubstr("bad field number"));
  EXPECT_THAT(failure(integer_field(1, 3)), HasSubstr("'the message.pieces' is not bytes"));
  EXPECT_THAT(failure(piece("\xFF")), HasSubstr("'pieces.piece' is not UTF-8"));
  EXPECT_THAT(failure(piece("a", integer_field(2, 1))), HasSubstr("'pieces.score' is not a float"));
  EXPECT_THAT(failure(bytes_field(2, integer_field(40, uint64_t{1} << 40))),
              HasSubstr("'trainer_spec.unk_id' is not within 32 bits"));
  EXPECT_THAT(failure(bytes_field(3, bytes_field(3, "x"))),
              HasSubstr("'normalizer_spec.add_dummy_prefix' is not true or false"));
}

TEST(SentencePieceFile, EveryCutIsAnErrorOrAShorterModel) {
  const std::string whole = test::read_file(kModel);
  int errors = 0;
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string message = failure(whole.substr(0, size));
    if (message == "(no error)") continue;
    ++errors;
    ASSERT_TRUE(message.starts_with("s.model: ")) << message;
  }
  EXPECT_GT(errors, 1000);
}

TEST(SentencePieceFile, TokenizersRefuseWhatTheyDoNotDo) {
  const test::TempDir dir;
  const auto error = [&](const std::string& more) {
    test::write_file(dir / "spiece.model", test::read_file(kModel) + more);
    return error_of([&] { load_tokenizer(dir.path()); });
  };
  EXPECT_EQ(error(""), "(no error)");
  EXPECT_THAT(error(bytes_field(2, integer_field(3, 2))), HasSubstr("'trainer_spec.model_type'"));
  EXPECT_THAT(error(bytes_field(2, integer_field(24, 1))), HasSubstr("treat_whitespace_as_suffix"));
  EXPECT_THAT(error(bytes_field(3, integer_field(3, 0))), HasSubstr("add_dummy_prefix"));
  EXPECT_THAT(error(bytes_field(3, integer_field(4, 0))), HasSubstr("remove_extra_whitespaces"));
  EXPECT_THAT(error(bytes_field(3, integer_field(5, 0))), HasSubstr("escape_whitespaces"));
  EXPECT_THAT(error(bytes_field(2, integer_field(40, 1 << 20))), HasSubstr("unk_id 1048576"));
  const std::string infinite = number(2 << 3 | 5) + std::string("\0\0\x80\x7F", 4);
  EXPECT_THAT(error(piece("a", infinite)), HasSubstr("has a score of inf"));
}

}  // namespace
}  // namespace halftone
